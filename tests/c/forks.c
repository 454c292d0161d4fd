/*
 * Proves that processes may be born at any moment: while 8 threads allocate
 * and free, the main thread forks children that allocate and leave by exit();
 * then vfork and exec, also with a child that allocates in the borrowed
 * address space, posix_spawn, popen and system. No block of the parent may
 * be damaged and no child may hang (each has 10 s).
 *
 * A vfork child shares memory and thread-local storage with its parent, but
 * the kernel drops its rseq registration: ids read there may be stale and
 * nothing restarts a sequence. That is the hard part of this program.
 *
 * By hand:  ./forks [FORKS (1000) [SPAWNS (200)]]
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define THREADS 8
#define SLOTS 64
extern char **environ;

static atomic_int stopping;
static atomic_ulong operations;
static const char *self;

static const size_t child_sizes[] = {1, 8, 16, 24, 40, 64, 100, 200, 333, 512, 1000, 1024, 2048, 3000,
    4096, 5000, 8192, 10000, 16384, 30000, 65536, 70000, 131072, 200000, MIB};
#define CHILD_SIZES (sizeof child_sizes / sizeof *child_sizes)

struct held {
    void *p;
    size_t n;
    uint64_t seed;
};

static void take(struct held *h, size_t n, uint64_t salt)
{
    h->p = hide(malloc(n));
    CHECK(h->p != NULL, "malloc(%zu)", n);
    h->n = n;
    h->seed = mix((uintptr_t)h->p ^ salt);
    fill(h->p, n, h->seed);
}

static void give(struct held *h, const char *what)
{
    verify(h->p, h->n, h->seed, what);
    free(h->p);
    h->p = NULL;
}

static void resize(struct held *h, size_t n, uint64_t salt, const char *what)
{
    verify(h->p, h->n, h->seed, what);
    h->p = hide(realloc(h->p, n));
    CHECK(h->p != NULL, "realloc to %zu", n);
    verify(h->p, n < h->n ? n : h->n, h->seed, what);
    h->n = n;
    h->seed = mix((uintptr_t)h->p ^ salt);
    fill(h->p, n, h->seed);
}

static void *churn(void *argument)
{
    uint64_t random = (uintptr_t)argument * 7919 + 1;
    struct held slot[SLOTS];
    memset(slot, 0, sizeof slot);
    for (uint64_t i = 0; !atomic_load(&stopping); i++) {
        struct held *h = &slot[next_random(&random) % SLOTS];
        if (h->p == NULL)
            take(h, log_size(&random, i % 64 == 0 ? 18 : 12), i);
        else if (next_random(&random) % 4 == 0)
            resize(h, log_size(&random, 12), i, "block that a thread resizes");
        else
            give(h, "block of a thread");
        if (i % 64 == 0)
            atomic_fetch_add(&operations, 64);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slot[i].p != NULL)
            give(&slot[i], "last block of a thread");
    return NULL;
}

static void wait_for(pid_t pid, const char *what, int number)
{
    int status;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        continue;
    CHECK(got == pid, "waitpid of a child of %s", what);
    CHECK(!WIFSIGNALED(status), "child %d of %s ended by signal %d%s", number, what, WTERMSIG(status),
          WTERMSIG(status) == SIGALRM ? ": it hung for 10 s" : "");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d of %s: exit status %d", number, what,
          WEXITSTATUS(status));
}

static struct held inherited[CHILD_SIZES];

static void *nothing(void *argument)
{
    free(hide(malloc(1000)));
    return argument;
}

/* What every forked child does: all sizes, twice, and what it inherited. */
static void child(int number)
{
    struct held h[CHILD_SIZES][4];
    signal(SIGALRM, SIG_DFL);
    alarm(slowed(10));
    for (int round = 0; round < 2; round++) {
        for (size_t s = 0; s < CHILD_SIZES; s++)
            for (int k = 0; k < (child_sizes[s] < 10000 ? 4 : 1); k++)
                take(&h[s][k], child_sizes[s], (uint64_t)number);
        for (size_t s = CHILD_SIZES; s-- > 0;)
            for (int k = 0; k < (child_sizes[s] < 10000 ? 4 : 1); k++)
                give(&h[s][k], "block of a child");
    }
    for (size_t s = 0; s < CHILD_SIZES; s++)
        give(&inherited[s], "block that the child inherited");
    if (number % 16 == 0) { /* a child may fork and start threads too */
        pid_t pid = fork();
        CHECK(pid >= 0, "fork in a child");
        if (pid == 0) {
            alarm(slowed(10));
            free(hide(malloc(100000)));
            exit(0);
        }
        wait_for(pid, "a child", number);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0, "a thread in a child");
        pthread_join(thread, NULL);
    }
    if (number % 8 == 0)
        malloc_trim(0);
    exit(0);
}

/* Some children live at once, else the 8 threads leave them no time. */
#define AT_ONCE 6

static void forks(int count)
{
    pid_t pid[AT_ONCE];
    for (size_t s = 0; s < CHILD_SIZES; s++)
        take(&inherited[s], child_sizes[s], s);
    for (int i = 0; i < count + AT_ONCE; i++) {
        if (i >= AT_ONCE && i - AT_ONCE < count)
            wait_for(pid[i % AT_ONCE], "fork", i - AT_ONCE);
        if (i >= count)
            continue;
        pid[i % AT_ONCE] = fork();
        CHECK(pid[i % AT_ONCE] >= 0, "fork");
        if (pid[i % AT_ONCE] == 0)
            child(i);
        free(hide(malloc((size_t)i * 17 % 9000)));
    }
    for (size_t s = 0; s < CHILD_SIZES; s++)
        give(&inherited[s], "block that was lent to children");
}

/* In the parent's memory, on the parent's stack: what is taken stays taken. */
static struct held borrowed[4096];
static unsigned borrowings;

static __attribute__((noinline)) void vfork_child(int allocate)
{
    uint64_t random = borrowings * 2654435761u + 88172645463325252ull;
    for (int i = 0; allocate && i < 3000; i++) {
        struct held *h = &borrowed[next_random(&random) % 4096];
        if (h->p == NULL)
            take(h, log_size(&random, 12), borrowings++);
        else if (next_random(&random) % 4 == 0)
            resize(h, log_size(&random, 12), borrowings++, "block that a vfork child resizes");
        else
            give(h, "block of a vfork child");
        if (i % 500 == 0)
            sched_yield(); /* so that ids go stale */
    }
    char *const arguments[] = {(char *)(uintptr_t)self, (char *)(uintptr_t) "--exec", NULL};
    execve(self, arguments, environ);
    _exit(127);
}

static __attribute__((noinline)) pid_t vfork_once(int allocate)
{
    pid_t pid = vfork();
    if (pid == 0)
        vfork_child(allocate);
    return pid;
}

static void vforks(int count)
{
    for (int i = 0; i < count; i++) {
        pid_t pid = vfork_once(i % 2);
        CHECK(pid > 0, "vfork");
        free(hide(malloc(500)));
        wait_for(pid, "vfork", i);
    }
    for (int i = 0; i < 4096; i++)
        if (borrowed[i].p != NULL)
            give(&borrowed[i], "block that a vfork child took");
}

static void spawns(int count)
{
    for (int i = 0; i < count; i++) {
        pid_t pid;
        char *const arguments[] = {(char *)(uintptr_t)self, (char *)(uintptr_t) "--exec", NULL};
        CHECK(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0, "posix_spawn");
        free(hide(malloc((size_t)i * 100)));
        wait_for(pid, "posix_spawn", i);
    }
    for (int i = 0; i < count / 10 + 1; i++) {
        char line[64] = "";
        FILE *pipe = popen("echo one two three", "r");
        CHECK(pipe != NULL && fgets(line, sizeof line, pipe) != NULL, "popen");
        CHECK(strcmp(line, "one two three\n") == 0, "popen read '%s'", line);
        CHECK(pclose(pipe) == 0, "pclose");
        int status = system("test $(echo 6) -eq 6");
        CHECK(status == 0, "system returned %d", status);
    }
}

int main(int argc, char **argv)
{
    start();
    if (argc > 1 && strcmp(argv[1], "--exec") == 0) {
        alarm(slowed(10));
        for (size_t s = 0; s < CHILD_SIZES; s++)
            free(hide(malloc(child_sizes[s])));
        return 0;
    }
    int count = argc > 1 ? atoi(argv[1]) : 1000;
    int spawn_count = argc > 2 ? atoi(argv[2]) : 200;
    self = realpath("/proc/self/exe", NULL);
    CHECK(self != NULL, "/proc/self/exe");
    pthread_t thread[THREADS];
    for (intptr_t t = 0; t < THREADS; t++)
        CHECK(pthread_create(&thread[t], NULL, churn, (void *)(t + 1)) == 0, "pthread_create");
    int64_t t0 = now_ms();
    forks(count);
    int64_t t1 = now_ms();
    vforks(spawn_count);
    int64_t t2 = now_ms();
    spawns(spawn_count);
    int64_t t3 = now_ms();
    atomic_store(&stopping, 1);
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    free((void *)(uintptr_t)self);
    CHECK(atomic_load(&operations) > 0, "the threads did nothing");
    printf("forks: ok, %d forks %ld ms, %d vforks %ld ms, spawns %ld ms, ops=%lu, validate %s\n", count,
           (long)(t1 - t0), spawn_count, (long)(t2 - t1), (long)(t3 - t2), atomic_load(&operations),
           validate());
    return 0;
}
