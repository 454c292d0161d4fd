/*
 * Proves that a process may fork at any moment from any thread: threads that allocate, resize, trim and pass blocks on
 * fork children themselves, while the others are inside every lock of the allocator. A child does all of that
 * too, some fork again or start threads, and leave by exit; none may hang (each has 20 s), find a damaged
 * block or damage one.
 *
 * By hand:  ./storm [SECONDS (3) [THREADS (6)]]
 */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define MAX_THREADS 32
#define SLOTS 40
#define SHARED 32

struct block {
    size_t n;
    uint64_t seed;
};

static _Atomic(struct block *) shared[SHARED];
static atomic_int stopping;
static atomic_ulong forked, operations;
static struct block *inherited[64];

static struct block *take(uint64_t *random, unsigned bits)
{
    size_t n = log_size(random, bits) + sizeof(struct block);
    struct block *b = hide(malloc(n));
    CHECK(b != NULL, "malloc(%zu)", n);
    b->n = n;
    b->seed = next_random(random);
    fill(b + 1, n - sizeof *b, b->seed);
    return b;
}

static void look(struct block *b, const char *what)
{
    verify(b + 1, b->n - sizeof *b, b->seed, what);
}

static void give(struct block *b, const char *what)
{
    look(b, what);
    b->seed = 0xdead;
    free(b);
}

/* Everything that takes a lock. */
static void turn(uint64_t *random, struct block **slot, int share)
{
    struct block **s = &slot[next_random(random) % SLOTS];
    uint64_t what = next_random(random) % 64;
    if (*s == NULL) {
        *s = take(random, what < 50 ? 12 : what < 60 ? 17 : 21);
    } else if (what < 8) {
        size_t n = log_size(random, 18) + sizeof(struct block), old = (*s)->n;
        look(*s, "block before realloc");
        struct block *b = hide(realloc(*s, n));
        CHECK(b != NULL, "realloc from %zu to %zu", old, n);
        b->n = n;
        fill(b + 1, n - sizeof *b, b->seed);
        *s = b;
    } else if (what < 12 && share) {
        *s = atomic_exchange(&shared[next_random(random) % SHARED], *s);
    } else if (what == 12) {
        malloc_trim(0);
    } else if (what == 13) {
        (void)mallinfo2();
    } else {
        give(*s, "block of a thread");
        *s = NULL;
    }
}

static void *in_child(void *argument)
{
    struct block *slot[SLOTS] = {0};
    uint64_t random = (uintptr_t)argument + 3;
    for (int i = 0; i < 300; i++)
        turn(&random, slot, 0);
    for (int i = 0; i < SLOTS; i++)
        if (slot[i] != NULL)
            give(slot[i], "last block of a child");
    return NULL;
}

static void child(unsigned long number)
{
    signal(SIGALRM, SIG_DFL);
    alarm(slowed(120));
    for (size_t i = 0; i < sizeof inherited / sizeof *inherited; i++)
        give(inherited[i], "block that a child inherited");
    in_child((void *)(uintptr_t)number);
    if (number % 8 == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, in_child, (void *)(uintptr_t)number) == 0, "a thread in a child");
        in_child((void *)(uintptr_t)(number + 1));
        pthread_join(thread, NULL);
    }
    if (number % 16 == 1) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork in a child");
        if (pid == 0) {
            alarm(slowed(120));
            in_child(NULL);
            exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a child's child: status %x", status);
    }
    /* no validate(): what other threads had in their hands at the fork is lost to the child */
    exit(0);
}

static void *work(void *argument)
{
    struct block *slot[SLOTS] = {0};
    uint64_t random = (uintptr_t)argument * 7919 + 1;
    while (!atomic_load(&stopping)) {
        for (int i = 0; i < 2000; i++)
            turn(&random, slot, 1);
        atomic_fetch_add(&operations, 2000);
        unsigned long number = atomic_fetch_add(&forked, 1);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0)
            child(number);
        turn(&random, slot, 1);
        int status;
        pid_t got;
        while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
            continue;
        CHECK(got == pid, "waitpid");
        CHECK(!WIFSIGNALED(status), "child %lu ended by signal %d%s", number, WTERMSIG(status),
              WTERMSIG(status) == SIGALRM ? ": it hung for 120 s" : "");
        CHECK(WEXITSTATUS(status) == 0, "child %lu: status %d", number, WEXITSTATUS(status));
    }
    for (int i = 0; i < SLOTS; i++)
        if (slot[i] != NULL)
            give(slot[i], "last block of a thread");
    return NULL;
}

int main(int argc, char **argv)
{
    start();
    int seconds = argc > 1 ? atoi(argv[1]) : 3;
    unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 6;
    CHECK(threads > 0 && threads <= MAX_THREADS, "1 to %d threads", MAX_THREADS);
    pthread_t thread[MAX_THREADS];
    uint64_t random = 5;
    for (size_t i = 0; i < sizeof inherited / sizeof *inherited; i++)
        inherited[i] = take(&random, i % 8 == 0 ? 21 : 13);
    for (uintptr_t t = 0; t < threads; t++)
        CHECK(pthread_create(&thread[t], NULL, work, (void *)(t + 1)) == 0, "pthread_create");
    for (int64_t end = now_ms() + seconds * 1000; now_ms() < end; sleep_ms(10))
        continue;
    atomic_store(&stopping, 1);
    for (unsigned t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);
    for (int i = 0; i < SHARED; i++)
        if (atomic_load(&shared[i]) != NULL)
            give(atomic_load(&shared[i]), "block that was passed on");
    for (size_t i = 0; i < sizeof inherited / sizeof *inherited; i++)
        give(inherited[i], "block that was lent");
    CHECK(atomic_load(&forked) > 0, "no fork");
    printf("storm: ok, %lu forks, ops=%lu, validate %s\n", atomic_load(&forked), atomic_load(&operations), validate());
    return 0;
}
