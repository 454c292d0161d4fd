/*
 * Guarded objects (guard=1000): each wrong access and each wrong free is seen, and what is right
 * goes on as without. The first argument names the case. Wrong cases print the object's address
 * first, and "went on" if they reach their end.
 */
#include "common.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGE 4096

/* A guarded object knows its exact size; 40 bytes have a class of 48. */
static size_t bytes = 40;

enum side { LEFT, RIGHT, ANY };

static enum side side_of(const char *p)
{
    return (uintptr_t)p % PAGE == 0 ? LEFT : RIGHT;
}

/* An object that is guarded, on this side of its page. The others leak, so that sheaves miss. */
static char *guarded(enum side side)
{
    for (int round = 0; round < 5000; round++) {
        for (int i = 0; i < 500; i++) {
            char *p = malloc(bytes);
            if (malloc_usable_size(p) == bytes && (side == ANY || side_of(p) == side))
                return p;
        }
        usleep(1000);
    }
    FAIL("no object was guarded");
}

static char *object(enum side side)
{
    char *p = guarded(side);
    printf("object %p\n", (void *)p);
    fflush(stdout);
    return hide(p);
}

__attribute__((noinline)) static void frees(void *p)
{
    free(p);
    __asm__ volatile("" ::: "memory");
}

static volatile char sink;

static void read_right(void) { sink = *(volatile char *)(object(RIGHT) + 48); }
static void write_right(void) { *(volatile char *)(object(RIGHT) + 48) = 1; }
static void read_left(void) { sink = *(volatile char *)(object(LEFT) - 1); }
static void write_left(void) { *(volatile char *)(object(LEFT) - 8) = 1; }

static void read_freed(void)
{
    char *p = object(ANY);
    frees(p);
    sink = *(volatile char *)(p + 3);
    /* Only the first fault of an object is reported. */
    sink = *(volatile char *)(p + 4);
}

static void write_freed(void)
{
    char *p = object(ANY);
    frees(p);
    *(volatile char *)(p + 3) = 1;
}

static void canary_right(void)
{
    char *p = object(RIGHT);
    *(volatile char *)(p + 40) = 1;
    frees(p);
}

static void canary_left(void)
{
    char *p = object(RIGHT);
    *(volatile char *)(p - 1) = 1;
    frees(p);
}

static void twice(void)
{
    char *p = object(ANY);
    frees(p);
    frees(p);
}

static void interior(void)
{
    char *p = object(ANY);
    frees(p + 8);
    frees(p);
}

static void outside(void)
{
    char *p = object(RIGHT);
    frees(p + 4096);
    frees(p);
}

static void realloc_freed(void)
{
    char *p = object(ANY);
    frees(p);
    sink = *(char *)hide(realloc(p, 100));
}

static void size_freed(void)
{
    char *p = object(ANY);
    frees(p);
    sink = (char)malloc_usable_size(p);
}

static void sized(void)
{
    void (*call)(void *, size_t);
    void *address = dlsym(RTLD_DEFAULT, "free_sized");
    memcpy(&call, &address, sizeof call);
    char *p = object(ANY);
    call(p, 41);
}

/* In a child of a fork, on its parent's object. */
static void forked(void)
{
    char *p = object(ANY);
    frees(p);
    if (fork() == 0) {
        sink = *(volatile char *)p;
        puts("child went on");
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    wait(&status);
    if (WIFSIGNALED(status))
        raise(WTERMSIG(status));
}

/* What is right in every way. */
static void right(void)
{
    static const size_t sizes[] = { 0, 1, 3, 8, 9, 16, 24, 40, 64, 100, 1000, 1024, 4000, 4096 };
    size_t guards = 0;
    for (int round = 0; round < 12; round++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            for (int i = 0; i < 70; i++) {
                size_t n = sizes[s];
                char *p = malloc(n);
                size_t usable = malloc_usable_size(p);
                guards += usable == n && n % 16 != 0;
                CHECK(usable >= n, "%zu of %zu", usable, n);
                CHECK((uintptr_t)p % (n < 9 ? 8 : 16) == 0, "%p", (void *)p);
                CHECK(n < 16 || (n & (n - 1)) != 0 || (uintptr_t)p % n == 0, "%p", (void *)p);
                memset(p, 7, usable);
                if (i % 3 == 0) {
                    p = realloc(p, n + 30);
                    for (size_t k = 0; k < n; k++)
                        CHECK(p[k] == 7, "realloc lost byte %zu of %zu", k, n);
                    p = realloc(p, n / 2 + 1);
                }
                char *z = calloc(n + 1, 1);
                for (size_t k = 0; k < n + 1; k++)
                    CHECK(z[k] == 0, "byte %zu of %zu is not zero", k, n);
                char *a = aligned_alloc(64, n + 1);
                CHECK((uintptr_t)a % 64 == 0, "%p", (void *)a);
                memset(a, 9, n + 1);
                if (i % 2) {
                    free(a);
                    free(z);
                    free(p);
                }
            }
        }
        usleep(2000);
    }
    CHECK(guards > 0, "no object was guarded");
    free(NULL);
    validate();
    printf("%zu guarded\n", guards);
}

struct node {
    struct node *next;
    size_t size;
    unsigned char first;
    unsigned char rest[];
};

static struct node *shared_list;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

/* Objects go from thread to thread; their bytes must stay. */
static void *worker(void *arg)
{
    unsigned state = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 20000; i++) {
        state = state * 1664525 + 1013904223;
        size_t size = state >> 22;
        struct node *n = malloc(sizeof *n + size);
        n->size = size;
        n->first = (unsigned char)state;
        memset(n->rest, n->first, size);
        pthread_mutex_lock(&list_lock);
        n->next = shared_list;
        shared_list = n;
        struct node *old = i % 3 ? n->next : NULL;
        if (old)
            n->next = old->next;
        pthread_mutex_unlock(&list_lock);
        if (old) {
            for (size_t k = 0; k < old->size; k++)
                CHECK(old->rest[k] == old->first, "byte %zu of %zu", k, old->size);
            free(old);
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t all[8];
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&all[i], NULL, worker, (void *)(i + 1));
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], NULL);
    while (shared_list) {
        struct node *n = shared_list;
        shared_list = n->next;
        free(n);
    }
    validate();
}

/* A fork at any time: parent and child go on, with the objects of both. */
static void forks(void)
{
    for (int i = 0; i < 8; i++) {
        char *p = guarded(ANY);
        memset(p, i, bytes);
        pid_t child = fork();
        for (size_t k = 0; k < bytes; k++)
            CHECK(p[k] == i, "byte %zu", k);
        free(p);
        char *q = guarded(ANY);
        memset(q, 5, bytes);
        free(q);
        if (child == 0)
            _exit(0);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    }
}

static char *wall;
static char alternate[65536];
static volatile int faults, on_alternate, was_blocked, had_address;

static void on_long(int number, siginfo_t *info, void *context)
{
    sigset_t now;
    CHECK(number == SIGSEGV && context != NULL, "arguments");
    sigprocmask(SIG_SETMASK, NULL, &now);
    was_blocked = sigismember(&now, SIGUSR1) && sigismember(&now, SIGSEGV);
    on_alternate = (char *)&now >= alternate && (char *)&now < alternate + sizeof alternate;
    had_address = info->si_addr == wall + 16;
    faults++;
    mprotect(wall, PAGE, PROT_READ | PROT_WRITE);
}

static void on_short(int number)
{
    CHECK(number == SIGSEGV, "arguments");
    faults++;
    mprotect(wall, PAGE, PROT_READ | PROT_WRITE);
}

static void touch_wall(void)
{
    mprotect(wall, PAGE, PROT_NONE);
    *(volatile char *)(wall + 16) = 1;
}

/* How a child that does this ends. */
static int end_of(void (*work)(void))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        work();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static void once_more(void)
{
    struct sigaction once = { .sa_handler = on_short, .sa_flags = SA_RESETHAND };
    sigaction(SIGSEGV, &once, NULL);
    touch_wall();
    CHECK(faults > 0, "the handler did not run");
    touch_wall();
}

static void with_default(void)
{
    signal(SIGSEGV, SIG_DFL);
    touch_wall();
}

static void with_ignored(void)
{
    signal(SIGSEGV, SIG_IGN);
    kill(getpid(), SIGSEGV);
    touch_wall();
}

static void sent(void)
{
    signal(SIGSEGV, SIG_DFL);
    kill(getpid(), SIGSEGV);
    usleep(1000);
}

static sigjmp_buf back;

static void jump(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* The program has its own handlers, and sees its own faults as if nobody stood in front. */
static void handler(void)
{
    struct sigaction old, mine = { .sa_sigaction = on_long, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    char *p = guarded(RIGHT), *freed = guarded(ANY);

    wall = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sigaltstack(&stack, NULL) == 0, "no stack");
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL, "not the default");
    sigemptyset(&mine.sa_mask);
    sigaddset(&mine.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGSEGV, &mine, &old) == 0 && old.sa_handler == SIG_DFL, "not the default");
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0, "no action");
    CHECK(old.sa_sigaction == on_long && old.sa_flags == (SA_SIGINFO | SA_ONSTACK), "another");
    CHECK(sigismember(&old.sa_mask, SIGUSR1) == 1, "another mask");
    touch_wall();
    CHECK(faults == 1 && on_alternate && was_blocked && had_address, "%d %d %d %d", faults,
          on_alternate, was_blocked, had_address);

    CHECK((void *)signal(SIGSEGV, on_short) == (void *)on_long, "another handler before");
    touch_wall();
    CHECK(faults == 2, "%d", faults);
    signal(SIGSEGV, jump);
    for (int i = 0; i < 3; i++)
        if (sigsetjmp(back, 1) == 0) {
            touch_wall();
            FAIL("no fault");
        }

    faults = 0;
    int status = end_of(once_more);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "once: %x", status);
    status = end_of(with_default);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "default: %x", status);
    status = end_of(with_ignored);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "ignored: %x", status);
    status = end_of(sent);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "sent: %x", status);

    /* A fault of a guarded object is not the program's. */
    printf("object %p\n", (void *)freed);
    fflush(stdout);
    signal(SIGSEGV, on_short);
    frees(freed);
    *(volatile char *)(freed + 1) = 2;
    CHECK(faults == 0, "the handler saw a guarded object");
    free(p);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*work)(void);
    } cases[] = {
        { "read-right", read_right },       { "write-right", write_right },
        { "read-left", read_left },         { "write-left", write_left },
        { "read-freed", read_freed },       { "write-freed", write_freed },
        { "canary-right", canary_right },   { "canary-left", canary_left },
        { "twice", twice },                 { "interior", interior },
        { "outside", outside },             { "realloc-freed", realloc_freed },
        { "size-freed", size_freed },       { "sized", sized },
        { "forked", forked },               { "right", right },
        { "threads", threads },             { "forks", forks },
        { "handler", handler },
    };
    start();
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].work();
            puts("went on");
            return 0;
        }
    return 2;
}
