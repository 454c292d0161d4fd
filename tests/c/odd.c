/*
 * Proves that odd threads and processes do no harm:
 *
 *   odd stacks     threads with stacks of 16 KiB use every call and every size
 *   odd cancel     threads are cancelled and leave by pthread_exit, with cleanup handlers and destructors of
 *                  thread-specific data that free what they had and allocate more; a cancellation
 *                  that is pending never strikes inside the allocator
 *   odd clone      children of clone(CLONE_VM), with and without CLONE_VFORK, that run a program while threads
 *                  allocate; they use no malloc themselves, as for any C library
 *   odd handler    a handler on an alternate stack of 16 KiB allocates while what it interrupts does (uslub only)
 */
#include "common.h"
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

#define STACK (16 * 1024)

static atomic_int stopping;
static atomic_ulong done;

static void every_call(uint64_t random)
{
    for (unsigned bits = 1; bits < 23; bits++) {
        size_t n = log_size(&random, bits);
        unsigned char *p = hide(malloc(n)), *q = hide(calloc(1, n));
        CHECK(p != NULL && q != NULL && all_zero(q, n), "malloc and calloc of %zu", n);
        fill(p, n, n);
        p = hide(realloc(p, 2 * n));
        CHECK(p != NULL, "realloc to %zu", 2 * n);
        verify(p, n, n, "block after realloc");
        free(q);
        q = hide(aligned_alloc(64, (n + 63) & ~(size_t)63));
        CHECK(q != NULL && (uintptr_t)q % 64 == 0, "aligned_alloc of %zu", n);
        CHECK(malloc_usable_size(p) >= 2 * n, "usable size");
        free(p);
        free(q);
    }
    malloc_trim(0);
}

static void *on_small_stack(void *argument)
{
    every_call((uintptr_t)argument * 31 + 7);
    atomic_fetch_add(&done, 1);
    return NULL;
}

static void stacks(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    CHECK(pthread_attr_setstacksize(&small, STACK) == 0, "a stack of 16 KiB");
    for (uintptr_t round = 0; round < 50; round++) {
        pthread_t thread[8];
        for (uintptr_t t = 0; t < 8; t++)
            CHECK(pthread_create(&thread[t], &small, on_small_stack, (void *)(round * 8 + t)) == 0, "pthread_create");
        for (int t = 0; t < 8; t++)
            pthread_join(thread[t], NULL);
    }
    CHECK(atomic_load(&done) == 400, "%lu threads", atomic_load(&done));
}

static pthread_key_t key;

static void at_thread_end(void *p)
{
    static _Thread_local int again;
    verify(p, 500, 3, "thread-specific data");
    free(p);
    if (again++ < 2) { /* destructors run again while there is data */
        p = hide(malloc(500));
        fill(p, 500, 3);
        pthread_setspecific(key, p);
    }
    atomic_fetch_add(&done, 1);
}

static void clean(void *p)
{
    verify(p, 3000, 9, "block of a thread that was cancelled");
    free(p);
    every_call(77);
}

static void *to_be_cancelled(void *argument)
{
    uint64_t random = (uintptr_t)argument + 1;
    void *mine = hide(malloc(500)), *held = hide(malloc(3000));
    fill(mine, 500, 3);
    fill(held, 3000, 9);
    pthread_setspecific(key, mine);
    pthread_cleanup_push(clean, held);
    for (unsigned i = 0;; i++) {
        /* a cancellation that is pending must not strike in here */
        void *p[20];
        for (int k = 0; k < 20; k++) {
            size_t n = log_size(&random, i % 50 == 0 ? 20 : 12);
            p[k] = hide(malloc(n));
            CHECK(p[k] != NULL, "malloc(%zu)", n);
        }
        for (int k = 0; k < 20; k++)
            free(p[k]);
        if (i % 200 == 0)
            malloc_trim(0);
        if ((uintptr_t)argument % 3 == 0 && i > 300)
            pthread_exit(NULL);
        pthread_testcancel();
    }
    pthread_cleanup_pop(1);
    return NULL;
}

static void cancel(void)
{
    CHECK(pthread_key_create(&key, at_thread_end) == 0, "pthread_key_create");
    long before = 0;
    for (uintptr_t round = 0; round < 40; round++) {
        pthread_t thread[8];
        for (uintptr_t t = 0; t < 8; t++)
            CHECK(pthread_create(&thread[t], NULL, to_be_cancelled, (void *)(round + t)) == 0, "pthread_create");
        sleep_ms((long)(round % 4));
        for (int t = 0; t < 8; t++)
            pthread_cancel(thread[t]);
        for (int t = 0; t < 8; t++)
            pthread_join(thread[t], NULL);
        if (round == 10)
            before = status_kib("VmRSS:");
    }
    CHECK(atomic_load(&done) >= 40 * 8, "%lu destructors", atomic_load(&done));
    long after = status_kib("VmRSS:");
    CHECK(after < before + 16 * 1024, "resident memory grew from %ld to %ld KiB", before, after);
}

static void *churn(void *argument)
{
    uint64_t random = (uintptr_t)argument + 11;
    void *slot[64] = {0};
    size_t size[64];
    while (!atomic_load(&stopping)) {
        unsigned s = (unsigned)(next_random(&random) % 64);
        if (slot[s] != NULL) {
            verify(slot[s], size[s], s, "block of a thread");
            free(slot[s]);
            slot[s] = NULL;
        } else {
            size[s] = log_size(&random, 14);
            slot[s] = hide(malloc(size[s]));
            fill(slot[s], size[s], s);
        }
    }
    for (int s = 0; s < 64; s++)
        free(slot[s]);
    return NULL;
}

static int run_true(void *argument)
{
    char *const arguments[] = {(char *)(uintptr_t) "true", NULL}, *const none[] = {NULL};
    (void)argument;
    execve("/bin/true", arguments, none);
    _exit(127);
}

static void clones(void)
{
    pthread_t thread[3];
    for (uintptr_t t = 0; t < 3; t++)
        CHECK(pthread_create(&thread[t], NULL, churn, (void *)t) == 0, "pthread_create");
    for (int i = 0; i < 200; i++) {
        char *stack = hide(malloc(STACK * 4));
        CHECK(stack != NULL, "a stack");
        int flags = SIGCHLD | CLONE_VM | (i % 2 ? CLONE_VFORK : 0);
        pid_t pid = clone(run_true, stack + STACK * 4, flags, NULL);
        CHECK(pid > 0, "clone");
        for (int k = 0; k < 100; k++)
            free(hide(malloc((size_t)k * 11)));
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d: status %x", i, status);
        free(stack);
    }
    atomic_store(&stopping, 1);
    for (int t = 0; t < 3; t++)
        pthread_join(thread[t], NULL);
}

static void on_alarm(int signal)
{
    int before = errno;
    (void)signal;
    void *p[4];
    for (size_t i = 0; i < 4; i++)
        p[i] = hide(malloc(40 + 16 * i));
    for (int i = 0; i < 4; i++)
        free(p[i]);
    atomic_fetch_add(&done, 1);
    errno = before;
}

static void handler(void)
{
    if (!on_uslub()) {
        say("odd: skipped: needs uslub");
        return;
    }
    /* what the handler asks for is at hand, so it stays on the fast path */
    void *p[24];
    for (size_t n = 40; n < 100; n += 8) {
        for (int i = 0; i < 24; i++)
            p[i] = hide(malloc(n));
        for (int i = 0; i < 24; i++)
            free(p[i]);
    }
    stack_t alternate = {.ss_sp = malloc(STACK), .ss_size = STACK};
    CHECK(alternate.ss_sp != NULL && sigaltstack(&alternate, NULL) == 0, "sigaltstack");
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0, "setitimer");
    while (atomic_load(&done) < 2000)
        for (int i = 0; i < 1000; i++) {
            void *a = hide(malloc(40 + (size_t)i % 60));
            free(a);
        }
    setitimer(ITIMER_REAL, &never, NULL);
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc == 2, "odd stacks|cancel|clone|handler");
    if (strcmp(argv[1], "stacks") == 0)
        stacks();
    else if (strcmp(argv[1], "cancel") == 0)
        cancel();
    else if (strcmp(argv[1], "clone") == 0)
        clones();
    else if (strcmp(argv[1], "handler") == 0)
        handler();
    else
        FAIL("unknown: %s", argv[1]);
    printf("odd: ok, %s, validate %s\n", argv[1], validate());
    return 0;
}
