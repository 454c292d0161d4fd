/*
 * Proves that programs which limit their memory get memory up to the limit,
 * then NULL and ENOMEM, never a crash; and that the allocator leaves room for
 * what else the process maps: thread stacks, files, its own stack.
 *
 *   rlimit as MIB      sets RLIMIT_AS itself, as a running program does
 *   rlimit data MIB    sets RLIMIT_DATA itself
 *   rlimit inherited   runs under the limit it was started with (ulimit -v)
 *   rlimit small       a small program: must run under any limit glibc runs in
 */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

struct block {
    struct block *next;
    size_t n;
    uint64_t seed;
};

static uint64_t random_state = 88172645463325252ull;

static struct block *take(size_t n)
{
    struct block *b = hide(malloc(n));
    if (b == NULL)
        return NULL;
    b->n = n;
    b->seed = mix((uintptr_t)b);
    fill(b + 1, n - sizeof *b, b->seed);
    return b;
}

static void give_all(struct block *list)
{
    while (list != NULL) {
        struct block *next = list->next;
        verify(list + 1, list->n - sizeof *list, list->seed, "block under a limit");
        free(list);
        list = next;
    }
}

/* Takes mixed sizes until NULL comes or most bytes are taken; how much it was.
 * After the first NULL smaller and smaller blocks are asked for. */
static size_t exhaust(size_t most, struct block **list, int *refused)
{
    size_t payload = 0;
    unsigned bits = 20;
    *refused = 0;
    while (payload < most && bits > 4) {
        size_t n = log_size(&random_state, bits);
        n = n < sizeof(struct block) ? sizeof(struct block) : n;
        errno = 0;
        struct block *b = take(n);
        if (b == NULL) {
            CHECK(errno == ENOMEM, "malloc(%zu) gave NULL with errno %d", n, errno);
            ++*refused;
            bits = n < 64 ? 0 : bits - 1;
            continue;
        }
        b->next = *list;
        *list = b;
        payload += n;
    }
    return payload;
}

static void *in_thread(void *argument)
{
    for (int i = 0; i < 1000; i++) {
        void *p = hide(malloc((size_t)i * 10));
        /* glibc may not find room for the arena of a thread */
        CHECK(p != NULL || !on_uslub(), "malloc in a thread under a limit");
        if (p != NULL)
            memset(p, i, (size_t)i * 10);
        free(p);
    }
    return argument;
}

static void thread_starts(const char *when)
{
    pthread_t thread;
    int result = pthread_create(&thread, NULL, in_thread, NULL);
    CHECK(result == 0, "pthread_create %s: error %d", when, result);
    pthread_join(thread, NULL);
}

static void file_maps(const char *when)
{
    int fd = open("/proc/self/exe", O_RDONLY);
    void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(fd >= 0 && p != MAP_FAILED, "mmap of a file %s", when);
    munmap(p, 4096);
    close(fd);
}

/* Touches 1 MiB of stack; the kernel must be able to grow it. */
static __attribute__((noinline)) unsigned deep(unsigned depth)
{
    volatile unsigned char frame[4096];
    for (size_t i = 0; i < sizeof frame; i += 64)
        frame[i] = (unsigned char)(depth + i);
    return depth == 0 ? frame[0] : deep(depth - 1) + frame[64];
}

static void room_for_others(const char *when)
{
    thread_starts(when);
    file_maps(when);
    CHECK(deep(256) > 0, "recursion %s", when);
}

static size_t limit_of(int resource)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0, "getrlimit");
    return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : (size_t)limit.rlim_cur;
}

/* At least a quarter of the limit must be had (a small one: less 32 MiB for code and stacks). */
static void run(size_t limit, int must_refuse)
{
    size_t least = (limit >= 512 * MIB ? limit : limit - 32 * MIB) / 4;
    size_t most = must_refuse ? limit + 64 * MIB : limit < 512 * MIB ? limit : 512 * MIB;
    least = least > most ? most / 2 : least;
    size_t got[3];
    int refused = 0;
    room_for_others("before memory is exhausted");
    for (int round = 0; round < 3; round++) {
        struct block *list = NULL;
        got[round] = exhaust(most, &list, &refused);
        CHECK(got[round] >= least, "round %d: only %zu MiB of a limit of %zu MiB", round,
              got[round] / MIB, limit / MIB);
        CHECK(!must_refuse || got[round] <= limit, "round %d: %zu MiB beyond a limit of %zu MiB", round,
              got[round] / MIB, limit / MIB);
        CHECK(!must_refuse || refused > 0, "round %d: malloc was never refused", round);
        errno = 0;
        if (must_refuse) { /* what cannot be had leaves all as it was */
            CHECK(hide(malloc(limit)) == NULL && errno == ENOMEM, "malloc of the whole limit");
            CHECK(hide(calloc(limit, 1)) == NULL && errno == ENOMEM, "calloc of the whole limit");
            if (list != NULL && list->n < MIB)
                CHECK(hide(realloc(hide(list), limit)) == NULL && errno == ENOMEM,
                      "realloc to the whole limit");
        }
        give_all(list);
        malloc_trim(0);
        room_for_others("after all is freed");
    }
    CHECK(got[2] >= got[0] / 2, "the third time only %zu MiB after %zu MiB", got[2] / MIB, got[0] / MIB);
    printf("rlimit: ok, limit %zu MiB, got %zu, %zu, %zu MiB, validate %s\n", limit / MIB, got[0] / MIB,
           got[1] / MIB, got[2] / MIB, validate());
}

/* What a small tool does: 4 MiB at most, in pieces. */
static void small(void)
{
    struct block *list = NULL;
    int refused;
    for (int round = 0; round < 10; round++) {
        size_t got = exhaust(4 * MIB, &list, &refused);
        CHECK(refused == 0, "malloc was refused after %zu KiB", got / 1024);
        give_all(list);
        list = NULL;
    }
    CHECK(deep(256) > 0, "recursion");
    printf("rlimit: ok, small, validate %s\n", validate());
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc > 1, "usage: rlimit as MIB | data MIB | inherited | small");
    if (strcmp(argv[1], "small") == 0) {
        small();
    } else if (strcmp(argv[1], "inherited") == 0) {
        size_t as = limit_of(RLIMIT_AS);
        CHECK(as != SIZE_MAX, "no limit was inherited; use ulimit -v");
        run(as, as <= 512 * MIB);
    } else {
        int resource = strcmp(argv[1], "data") == 0 ? RLIMIT_DATA : RLIMIT_AS;
        size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 512) * MIB;
        free(hide(malloc(1000))); /* the allocator is at work before the limit comes */
        struct rlimit limit = {bytes, bytes};
        CHECK(setrlimit(resource, &limit) == 0, "setrlimit");
        run(bytes, 1);
    }
    return 0;
}
