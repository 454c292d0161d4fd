/*
 * Proves that what a process may have of address space, memory and mappings is there for the program,
 * not for what the allocator keeps ahead of use.
 *
 *   bounds small            a small program: runs under any limit that plain programs run under
 *   bounds threads          counts the threads that it can create
 *   bounds large PERCENT    gets an object of so much of its limit on address space
 *   bounds own AS|DATA      sets the limit itself: an object of 600 MiB of 1 GiB, then threads, then small objects, whose
 *                           memory is there for a mapping of the program's own once they are freed
 *   bounds commit MIB       so much in small objects, in one object after that, and a quarter in a mapping of its own
 *   bounds lock             locks all memory with little to lock, as a user without rights
 *   bounds many KB COUNT    so many objects of so many thousand bytes: mappings are few, a thread and a library can be had
 *   bounds grow             objects that grow and shrink while there are many others
 *   bounds refused          objects freed while the system refuses to unmap go later
 */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void *nothing(void *argument)
{
    free(hide(malloc(100)));
    return argument;
}

static void thread_starts(const char *when)
{
    pthread_t thread;
    int result = pthread_create(&thread, NULL, nothing, NULL);
    CHECK(result == 0, "pthread_create %s: error %d", when, result);
    pthread_join(thread, NULL);
}

static char maps[1 << 16];

/* Mappings of this process; how many of the addresses (ascending) are mapped goes to `mapped`. */
static size_t mappings(const uintptr_t *addresses, size_t nr, size_t *mapped)
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "the mappings cannot be read");
    size_t lines = 0, at = 0, fill = 0;
    ssize_t n;
    *mapped = 0;
    while ((n = read(fd, maps + fill, sizeof maps - 1 - fill)) > 0) {
        fill += (size_t)n;
        maps[fill] = '\0';
        char *line = maps, *end;
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            char *dash;
            uintptr_t from = strtoul(line, &dash, 16), to = strtoul(dash + 1, NULL, 16);
            lines++;
            while (at < nr && addresses[at] < to)
                *mapped += addresses[at++] >= from;
        }
        fill -= (size_t)(line - maps);
        memmove(maps, line, fill);
    }
    close(fd);
    return lines;
}

static size_t few(const char *when)
{
    size_t mapped, nr = mappings(NULL, 0, &mapped);
    CHECK(nr < 4096, "%zu mappings %s", nr, when);
    return nr;
}

static void limit_to(int resource, size_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(resource, &limit) == 0, "setrlimit");
}

static size_t limit_of(int resource)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0, "getrlimit");
    return (size_t)limit.rlim_cur;
}

/* Takes small objects of so many bytes in all; returns their list. */
static void **take_small(size_t bytes)
{
    void **list = NULL;
    for (size_t taken = 0; taken < bytes; taken += 1024) {
        void **p = hide(malloc(1000));
        CHECK(p != NULL, "no small object after %zu MiB", taken / MIB);
        *p = list;
        list = p;
    }
    return list;
}

static void give_small(void **list)
{
    while (list != NULL) {
        void **next = *list;
        free(list);
        list = next;
    }
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int is_open;

static void *wait_at_gate(void *argument)
{
    free(hide(malloc(100)));
    pthread_mutex_lock(&gate);
    while (!is_open)
        pthread_cond_wait(&opened, &gate);
    pthread_mutex_unlock(&gate);
    return argument;
}

/* As many threads with stacks of 8 MiB as there can be, 1,000 at most. */
static size_t count_threads(void)
{
    static pthread_t threads[1000];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 * MIB);
    size_t nr = 0;
    while (nr < 1000 && pthread_create(&threads[nr], &attributes, wait_at_gate, NULL) == 0)
        nr++;
    pthread_mutex_lock(&gate);
    is_open = 1;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
    for (size_t i = 0; i < nr; i++)
        pthread_join(threads[i], NULL);
    return nr;
}

static void own(int resource)
{
    give_small(take_small(32 * MIB));
    limit_to(resource, 1024 * MIB);
    void *large = hide(malloc(600 * MIB));
    CHECK(large != NULL, "no object of 600 MiB of 1 GiB");
    thread_starts("beside an object of 600 MiB");
    void **list = take_small(200 * MIB);
    free(large);
    give_small(list);
    list = take_small(700 * MIB);
    give_small(list);
    void *mapping = mmap(NULL, 800 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED, "what was freed is still taken");
    thread_starts("beside a mapping of 800 MiB");
    munmap(mapping, 800 * MIB);
    large = hide(malloc(800 * MIB));
    CHECK(large != NULL, "no object of 800 MiB of 1 GiB after others");
    free(large);
    CHECK(hide(malloc(1100 * MIB)) == NULL && errno == ENOMEM, "more than the limit");
    give_small(take_small(700 * MIB));
    if (resource == RLIMIT_AS) {
        /* glibc has them too, with 64 MiB of address space for each of its first arenas */
        size_t nr = count_threads();
        CHECK(nr >= 100, "only %zu threads", nr);
    }
}

static void lock(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0, "getrlimit");
    size_t most = limit.rlim_max < 64 * MIB ? limit.rlim_max : 64 * MIB;
    if (most < 8 * MIB) {
        say("skipped: only %zu KiB may be locked", most / 1024);
        return;
    }
    limit_to(RLIMIT_MEMLOCK, most);
    if (geteuid() == 0)
        CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "setresuid");
    CHECK(mlockall(MCL_CURRENT) == 0, "mlockall of what there is");
    give_small(take_small(most / 8));
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall of what is to come");
    for (int round = 0; round < 5; round++) {
        void *large = hide(malloc(most / 8));
        CHECK(large != NULL, "no object of %zu KiB of %zu", most / 8192, most / 1024);
        void **list = take_small(most / 16);
        free(large);
        give_small(list);
        CHECK(hide(malloc(2 * most)) == NULL, "more than can be locked");
    }
    void *mapping = mmap(NULL, most / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED, "an eighth of what can be locked");
}

static void *grown(void *p, size_t old, size_t new)
{
    unsigned char *q = hide(realloc(p, new));
    CHECK(q != NULL, "realloc from %zu to %zu bytes", old, new);
    for (size_t at = 0; at < old && at < new; at += 30011)
        CHECK(q[at] == (unsigned char)(1 + at / 30011), "realloc from %zu to %zu bytes changes byte %zu", old, new, at);
    for (size_t at = 0; at < new; at += 30011)
        q[at] = (unsigned char)(1 + at / 30011);
    return q;
}

static void many(size_t bytes, size_t nr)
{
    void **objects = mmap(NULL, nr * sizeof *objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(objects != MAP_FAILED, "no room for %zu pointers", nr);
    size_t most = 0;
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < nr; i++) {
            if (objects[i] != NULL)
                continue;
            objects[i] = hide(round % 2 == 0 ? malloc(bytes) : calloc(bytes, 1));
            CHECK(objects[i] != NULL, "object %zu in round %d", i, round);
            size_t *word = (size_t *)objects[i] + bytes / 16;
            CHECK(round % 2 == 0 || *word == 0, "object %zu of calloc in round %d", i, round);
            if (i % 64 < 2)
                *word = i + 1;
        }
        size_t now = few("with all objects");
        most = now > most ? now : most;
        for (size_t i = 0; i < nr; i++)
            CHECK(i % 64 >= 2 || ((size_t *)objects[i])[bytes / 16] == i + 1, "object %zu was changed", i);
        for (size_t i = (size_t)round % 2; i < nr; i += 2) {
            free(objects[i]);
            objects[i] = NULL;
        }
        now = few("with every other object");
        most = now > most ? now : most;
        thread_starts("among many objects");
        void *library = dlopen("libm.so.6", RTLD_NOW);
        CHECK(library != NULL, "dlopen among many objects: %s", dlerror());
        dlclose(library);
    }
    for (size_t i = 0; i < nr; i++)
        free(objects[i]);
    malloc_trim(0);
    say("%zu mappings at most, %zu in the end", most, few("without objects"));
}

/* Sizes up to 16 MiB, in and out of mappings. */
static void grow(void)
{
    enum { OTHERS = 20000, OBJECTS = 300 };
    static void *others[OTHERS], *objects[OBJECTS];
    static size_t sizes[OBJECTS];
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < OTHERS; i++)
        CHECK((others[i] = hide(malloc(300000 + i % 3000 * 300))) != NULL, "object %zu", i);
    for (size_t step = 0; step < 8000; step++) {
        size_t i = next_random(&state) % OBJECTS;
        size_t new = 2 + log_size(&state, 24);
        switch (next_random(&state) % 4) {
        case 0:
            free(objects[i]);
            objects[i] = NULL;
            sizes[i] = 0;
            break;
        case 1: /* a little longer, as a buffer grows */
            new = sizes[i] + 2 + next_random(&state) % 100000;
            new = new > 32 * MIB ? 2 : new;
            /* fall through */
        default:
            objects[i] = grown(objects[i], sizes[i], new);
            sizes[i] = new;
            CHECK(malloc_usable_size(objects[i]) >= new, "usable size");
        }
        if (step % 1000 == 0)
            few("while objects grow");
        if (step % 2000 == 1000)
            for (size_t k = step / 2000; k < OTHERS; k += 4) {
                free(others[k]);
                others[k] = NULL;
            }
    }
    for (size_t i = 0; i < OBJECTS; i++)
        free(objects[i]);
}

enum { HUGE = 400 };

static int by_address(const void *a, const void *b)
{
    uintptr_t left = *(const uintptr_t *)a, right = *(const uintptr_t *)b;
    return (left > right) - (left < right);
}

static void refused(void)
{
    static void *objects[HUGE];
    static uintptr_t freed[HUGE / 2];
    size_t nr = 0, mapped = 0;
    for (size_t i = 0; i < HUGE; i++) {
        CHECK((objects[i] = hide(malloc(3 * MIB))) != NULL, "object %zu", i);
        memset(objects[i], 1, 5000);
    }
    /* So many mappings of two kinds in turn that there can be no more. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 300000 * page, at = 0;
    char *mine = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mine != MAP_FAILED, "mmap");
    while (at < bytes && mprotect(mine + at, page, PROT_READ) == 0)
        at += 2 * page;
    if (at >= bytes) {
        say("skipped: the system sets no bound of 65,530 mappings");
        return;
    }
    for (size_t i = 1; i < HUGE; i += 2) {
        freed[nr++] = (uintptr_t)objects[i];
        free(objects[i]);
    }
    qsort(freed, nr, sizeof *freed, by_address);
    malloc_trim(0);
    mappings(freed, nr, &mapped);
    size_t kept = mapped;
    /* There is memory all the same. */
    void *large = hide(malloc(5 * MIB));
    CHECK(large != NULL, "no object of 5 MiB without mappings");
    memset(large, 1, 5 * MIB);
    give_small(take_small(20 * MIB));
    free(large);
    munmap(mine, bytes);
    for (int i = 0; i < 20; i++) {
        void *p = hide(malloc((size_t)(i % 3 + 3) * MIB));
        CHECK(p != NULL, "malloc");
        free(p);
    }
    malloc_trim(0);
    mappings(freed, nr, &mapped);
    CHECK(mapped == 0, "%zu of %zu freed objects are still mapped (%zu while it was refused)", mapped, nr, kept);
    CHECK(kept > 0 || !on_uslub(), "nothing was refused");
    for (size_t i = 0; i < HUGE; i += 2) {
        CHECK(((char *)objects[i])[4999] == 1, "object %zu was changed", i);
        free(objects[i]);
    }
    thread_starts("in the end");
}

/* Until the thread of `uslub run` has given all back and ended: the invariants hold where nobody else is at work. */
static void wait_alone(void)
{
    struct stat threads;
    for (int i = 0; i < 300 && stat("/proc/self/task", &threads) == 0 && threads.st_nlink > 3; i++)
        usleep(20000);
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc > 1, "usage: see the source");
    const char *what = argv[1];
    if (strcmp(what, "small") == 0) {
        give_small(take_small(4 * MIB));
        void *large = hide(malloc(6 * MIB));
        CHECK(large != NULL, "no object of 6 MiB");
        free(large);
    } else if (strcmp(what, "threads") == 0) {
        free(hide(malloc(100)));
        printf("threads %zu\n", count_threads());
    } else if (strcmp(what, "large") == 0 && argc > 2) {
        size_t bytes = limit_of(RLIMIT_AS) / 100 * (size_t)atoi(argv[2]);
        give_small(take_small(MIB));
        for (int round = 0; round < 3; round++) {
            void *p = hide(malloc(bytes));
            CHECK(p != NULL, "no object of %zu MiB", bytes / MIB);
            free(p);
        }
    } else if (strcmp(what, "own") == 0 && argc > 2) {
        own(strcmp(argv[2], "DATA") == 0 ? RLIMIT_DATA : RLIMIT_AS);
    } else if (strcmp(what, "commit") == 0 && argc > 2) {
        size_t bytes = (size_t)atoi(argv[2]) * MIB;
        give_small(take_small(bytes));
        void *large = hide(malloc(bytes));
        CHECK(large != NULL, "no object of %s MiB", argv[2]);
        free(large);
        void *mapping = mmap(NULL, bytes / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapping != MAP_FAILED, "no mapping of a quarter of %s MiB", argv[2]);
        munmap(mapping, bytes / 4);
    } else if (strcmp(what, "lock") == 0) {
        lock();
    } else if (strcmp(what, "many") == 0 && argc > 3) {
        many((size_t)atoi(argv[2]) * 1000, (size_t)atoi(argv[3]));
    } else if (strcmp(what, "grow") == 0) {
        grow();
    } else if (strcmp(what, "refused") == 0) {
        refused();
    } else {
        FAIL("usage: see the source");
    }
    wait_alone();
    printf("bounds: ok, validate %s\n", validate());
    return 0;
}
