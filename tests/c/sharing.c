/*
 * Proves that children which share their parent's memory may allocate while its threads do:
 *
 *   sharing vfork     children of vfork and __vfork; of those, some fork, vfork and start threads themselves
 *   sharing clone     children of clone and __clone with CLONE_VM | CLONE_VFORK
 *   sharing lives     children of clone with CLONE_VM alone, which live beside their parent (uslub only); when they are
 *                     gone, allocation is as fast as before
 *   sharing number    children of syscall with the numbers of vfork, clone and clone3, on their parent's stack (uslub
 *                     only: glibc's syscall returns by that stack) and on their own
 *   sharing thread    threads of clone with thread-local memory that nobody has registered
 *   sharing fork      children of clone and syscall that share nothing: forks that the C library does not see (uslub
 *                     only: glibc's malloc may be locked in there)
 *   sharing spawn     children of posix_spawn, posix_spawnp, system and popen, with file actions and attributes
 *   sharing many      children of all kinds from several threads at a time; some are killed, some cannot run their program
 */
#include "common.h"
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define STACK (128 * 1024)
#define SHARED (CLONE_VM | CLONE_VFORK | SIGCHLD)

extern char **environ;
extern pid_t __vfork(void);
extern int __clone(int (*)(void *), void *, int, void *, ...);

static atomic_int stopping;
static atomic_ulong turns;

/* Blocks of one class from hand to hand: two owners of one show at once. */
static void take_and_give(uint64_t salt, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        uint64_t *p = hide(malloc(24)), *q = hide(malloc(24));
        CHECK(p != NULL && q != NULL && p != q, "two blocks are one: %p", (void *)p);
        p[0] = p[2] = salt;
        q[0] = q[2] = ~salt;
        void *large = i % 16 == 0 ? hide(malloc(3000)) : NULL;
        CHECK(p[0] == salt && p[2] == salt && q[0] == ~salt && q[2] == ~salt, "a block has two owners");
        free(p);
        free(q);
        free(large);
    }
}

static void *churn(void *argument)
{
    for (uint64_t i = 1; !atomic_load(&stopping); i++) {
        take_and_give((uint64_t)(uintptr_t)argument << 48 | i, 50);
        atomic_fetch_add(&turns, 1);
    }
    return NULL;
}

static pthread_t others[8];
static int nr_others;

static void begin(int count)
{
    nr_others = count;
    for (int t = 0; t < count; t++)
        CHECK(pthread_create(&others[t], NULL, churn, (void *)(uintptr_t)(t + 1)) == 0, "pthread_create");
}

static void end(void)
{
    CHECK(nr_others == 0 || atomic_load(&turns) > 0, "the threads did nothing");
    atomic_store(&stopping, 1);
    for (int t = 0; t < nr_others; t++)
        pthread_join(others[t], NULL);
}

static void reap(pid_t pid, const char *what, int number, int expected)
{
    int status = 0;
    pid_t got;
    CHECK(pid > 0, "%s %d", what, number);
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        continue;
    CHECK(got == pid && status == expected, "%s, child %d: status %#x instead of %#x", what, number, status,
          expected);
}

static void run_true(void)
{
    execl("/bin/true", "true", (char *)NULL);
    _exit(127);
}

static char *new_stack(void)
{
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "a stack");
    return stack;
}

/* ---- vfork ---- */

static __attribute__((noinline)) pid_t fork_with_threads(int number)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    /* memory of its own, but its parent had no registered area to copy */
    alarm(20);
    pthread_t thread[2];
    for (uintptr_t t = 0; t < 2; t++)
        if (pthread_create(&thread[t], NULL, churn, (void *)(t + 20)) != 0)
            _exit(3);
    for (int i = 0; i < 20; i++) {
        take_and_give((uint64_t)number << 32 | (unsigned)i, 300);
        sched_yield();
    }
    atomic_store(&stopping, 1);
    for (int t = 0; t < 2; t++)
        pthread_join(thread[t], NULL);
    _exit(0);
}

static __attribute__((noinline)) pid_t vfork_twice(int number)
{
    pid_t pid = vfork();
    if (pid == 0) {
        take_and_give((uint64_t)number | 77ull << 40, 60);
        run_true();
    }
    return pid;
}

static __attribute__((noinline)) void vfork_child(int number)
{
    int status = 0;
    take_and_give((uint64_t)number | 88ull << 40, 60);
    if (number % 4 == 1) {
        pid_t pid = vfork_twice(number);
        if (pid <= 0 || waitpid(pid, &status, 0) != pid || status != 0)
            _exit(4);
        take_and_give((uint64_t)number | 89ull << 40, 60);
    }
    if (number % 32 == 2) {
        pid_t pid = fork_with_threads(number);
        if (pid <= 0 || waitpid(pid, &status, 0) != pid || status != 0)
            _exit(5);
    }
    if (number % 4 == 3)
        _exit(0);
    run_true();
}

static __attribute__((noinline)) pid_t vfork_once(int number)
{
    pid_t pid = number % 2 ? vfork() : __vfork();
    if (pid == 0)
        vfork_child(number);
    return pid;
}

static void vforks(void)
{
    begin(2);
    for (int i = 0; i < 120; i++) {
        reap(vfork_once(i), "vfork", i, 0);
        take_and_give((uint64_t)i | 90ull << 40, 10);
    }
    end();
}

/* ---- clone ---- */

static int shared_child(void *argument)
{
    int number = (int)(intptr_t)argument;
    take_and_give((uint64_t)number | 99ull << 40, 60);
    if (number % 4 == 3)
        return 0;
    run_true();
    return 1;
}

static pid_t clone_once(int number, char *stack, int flags)
{
    void *argument = (void *)(intptr_t)number;
    return number % 2 ? clone(shared_child, stack + STACK, flags, argument)
                      : __clone(shared_child, stack + STACK, flags, argument);
}

static void clones(void)
{
    char *stack = new_stack();
    begin(2);
    for (int i = 0; i < 400; i++) {
        reap(clone_once(i, stack, SHARED), "clone", i, 0);
        take_and_give((uint64_t)i | 91ull << 40, 10);
    }
    end();
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The shortest time of many for the same work. */
static int64_t best(void)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < 200; i++) {
        int64_t since = nanoseconds();
        for (int k = 0; k < 2000; k++)
            free(hide(malloc(48)));
        int64_t took = nanoseconds() - since;
        if (took < least)
            least = took;
    }
    return least;
}

static atomic_int born;

static int living_child(void *argument)
{
    atomic_fetch_add(&born, 1);
    while (atomic_load(&born) < 2) /* so that both run at once */
        sched_yield();
    take_and_give((uint64_t)(uintptr_t)argument << 32, 2000);
    return 0;
}

static void lives(void)
{
    enum { AT_ONCE = 2 };
    char *stack[AT_ONCE];
    if (!on_uslub()) {
        say("sharing: skipped: such children share what glibc's malloc has for each thread");
        return;
    }
    for (int k = 0; k < AT_ONCE; k++)
        stack[k] = new_stack();
    int64_t before = best();
    begin(1);
    for (int i = 0; i < 20; i++) {
        pid_t pid[AT_ONCE];
        atomic_store(&born, 0);
        for (int k = 0; k < AT_ONCE; k++)
            pid[k] = clone(living_child, stack[k] + STACK, CLONE_VM | SIGCHLD, (void *)(intptr_t)(2 * i + k + 1));
        take_and_give((uint64_t)i | 92ull << 40, 100);
        for (int k = 0; k < AT_ONCE; k++)
            reap(pid[k], "clone without CLONE_VFORK", i, 0);
    }
    end();
    int64_t after = best();
    CHECK(after < 8 * before, "2000 pairs took %ld ns before and %ld ns after", (long)before, (long)after);
}

/* ---- system calls by number ---- */

enum { BY_VFORK, BY_CLONE, BY_CLONE3, NUMBERS };

static pid_t by_number(int which, uint64_t flags, uint64_t signal)
{
#ifdef SYS_vfork
    if (which == BY_VFORK)
        return (pid_t)(flags == 0 ? syscall(SYS_fork) : syscall(SYS_vfork));
#endif
    if (which != BY_CLONE3)
        return (pid_t)syscall(SYS_clone, flags | signal, 0, 0, 0, 0);
    static struct clone_args args;
    args.flags = flags;
    args.exit_signal = signal;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

/* This frame stays: its child calls on, and the parent returns from here afterwards. */
static __attribute__((noinline)) pid_t shared_by_number(int number)
{
    pid_t pid = by_number(number % NUMBERS, CLONE_VM | CLONE_VFORK, SIGCHLD);
    if (pid == 0) {
        take_and_give((uint64_t)number | 66ull << 40, 60);
        if (number % 4 == 3)
            _exit(0);
        run_true();
    }
    return pid;
}

#ifdef __x86_64__
static __attribute__((noreturn)) void on_own_stack(void)
{
    take_and_give(55ull << 40, 60);
    run_true();
    _exit(1);
}

static __attribute__((noinline)) pid_t on_own_stack_by_number(int number, char *stack, uint64_t flags)
{
    /* the child returns to the address on its stack */
    uintptr_t *top = (uintptr_t *)(void *)(stack + STACK - 64);
    *top = (uintptr_t)on_own_stack;
    if (number % 2)
        return (pid_t)syscall(SYS_clone, flags | SIGCHLD, top, 0, 0, 0);
    static struct clone_args args;
    args.flags = flags;
    args.exit_signal = SIGCHLD;
    args.stack = (uintptr_t)stack;
    args.stack_size = STACK - 64;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}
#endif

static void numbers(void)
{
    char *stack = new_stack();
    (void)stack;
    begin(2);
    for (int i = 0; i < 200; i++) {
        if (on_uslub())
            reap(shared_by_number(i), "a system call", i, 0);
        take_and_give((uint64_t)i | 93ull << 40, 10);
#ifdef __x86_64__
        if (i % 4 == 0) {
            reap(on_own_stack_by_number(i / 4, stack, CLONE_VM | CLONE_VFORK), "a stack of its own", i, 0);
            if (on_uslub())
                reap(on_own_stack_by_number(i / 4, stack, 0), "a fork's stack of its own", i, 0);
        }
#endif
    }
    /* what the kernel refuses leaves no trace */
    CHECK(syscall(SYS_clone, SHARED | CLONE_THREAD, 0, 0, 0, 0) == -1 && errno == EINVAL, "a thread without CLONE_SIGHAND");
    CHECK(syscall(SYS_clone, SHARED | CLONE_FS | CLONE_NEWNS, 0, 0, 0, 0) == -1 && errno == EINVAL, "CLONE_FS and CLONE_NEWNS");
    CHECK(syscall(SYS_clone, CLONE_VM | CLONE_FS | CLONE_NEWNS, 0, 0, 0, 0) == -1 && errno == EINVAL, "the same, not waited for");
    CHECK(syscall(SYS_clone3, NULL, 0) == -1, "clone3 without a record");
    CHECK(syscall(SYS_getpid) == getpid() && syscall(-1L) == -1 && errno == ENOSYS, "ordinary numbers");
    char byte = 0;
    void *map = (void *)syscall(SYS_mmap, NULL, (size_t)4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, (off_t)0);
    CHECK(map != MAP_FAILED && syscall(SYS_mincore, map, (size_t)4096, &byte) == 0, "six arguments");
    end();
}

/* ---- threads that the C library does not make ---- */

static _Atomic pid_t living;

static int bare_thread(void *argument)
{
    take_and_give((uint64_t)(uintptr_t)argument | 44ull << 40, 8000);
    syscall(SYS_exit, 0);
    return 0;
}

static void threads(void)
{
#ifdef __x86_64__
    void *symbol = dlsym(RTLD_DEFAULT, "_dl_allocate_tls");
    void *(*allocate)(void *);
    if (symbol == NULL) {
        say("sharing: skipped: thread-local memory cannot be had here");
        return;
    }
    memcpy(&allocate, &symbol, sizeof allocate);
    char *stack = new_stack();
    begin(2);
    for (int i = 0; i < 12; i++) {
        void **record = allocate(NULL);
        CHECK(record != NULL, "thread-local memory");
        record[0] = record[2] = record;
        atomic_store(&living, 1);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
                    CLONE_CHILD_CLEARTID;
        pid_t tid = clone(bare_thread, stack + STACK, flags, (void *)(intptr_t)i, NULL, record, &living);
        CHECK(tid > 0, "a thread");
        while (atomic_load(&living) != 0)
            sched_yield();
    }
    end();
#endif
}

/* ---- forks that the C library does not see ---- */

static int fork_child(void *argument)
{
    alarm(20);
    take_and_give((uint64_t)(uintptr_t)argument | 33ull << 40, 200);
    for (size_t n = 1; n < 4 * MIB; n = n * 3 + 1)
        free(hide(malloc(n)));
    malloc_trim(0);
    _exit(0);
}

static void forks(void)
{
    char *stack = new_stack();
    if (!on_uslub()) {
        say("sharing: skipped: glibc's malloc may be locked in such a child");
        return;
    }
    begin(2);
    for (int i = 0; i < 120; i++) {
        pid_t pid = i % 4 == NUMBERS ? clone(fork_child, stack + STACK, SIGCHLD, (void *)(intptr_t)i)
                                     : by_number(i % 4, 0, SIGCHLD);
        if (pid == 0)
            fork_child((void *)(intptr_t)i);
        reap(pid, "a fork", i, 0);
    }
    end();
}

/* ---- children of the C library ---- */

static void spawn(int number)
{
    pid_t pid;
    char *const arguments[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t) "read x; test $x = line", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t set;
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "line\n", 5) == 5, "a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes, &set);
    sigaddset(&set, SIGUSR1);
    posix_spawnattr_setsigdefault(&attributes, &set);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    int error = number % 2 ? posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments, environ)
                           : posix_spawnp(&pid, "sh", &actions, &attributes, arguments, environ);
    CHECK(error == 0, "posix_spawn: error %d", error);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[0]);
    close(ends[1]);
    reap(pid, "posix_spawn", number, 0);
    error = posix_spawnp(&pid, "no program of this name", NULL, NULL, arguments, environ);
    CHECK(error == ENOENT, "posix_spawnp of nothing: error %d", error);
}

static void spawns(void)
{
    begin(2);
    for (int i = 0; i < 60; i++) {
        spawn(i);
        take_and_give((uint64_t)i | 94ull << 40, 10);
        if (i % 4 != 0)
            continue;
        CHECK(system("exit 3") == 3 << 8, "system");
        char line[16] = "";
        FILE *pipe = popen("echo word", "r");
        CHECK(pipe != NULL && fgets(line, sizeof line, pipe) != NULL && pclose(pipe) == 0, "popen");
        CHECK(strcmp(line, "word\n") == 0, "popen read '%s'", line);
    }
    end();
}

/* ---- all at once ---- */

static __attribute__((noinline)) void some_end(int number)
{
    take_and_give((uint64_t)number | 22ull << 40, 40);
    if (number % 3 == 0)
        kill(getpid(), SIGKILL);
    if (number % 3 == 1) {
        execl("/no/such/program", "program", (char *)NULL);
        _exit(9);
    }
    run_true();
}

static int some_end_of_clone(void *argument)
{
    some_end((int)(intptr_t)argument);
    return 0;
}

static __attribute__((noinline)) pid_t some_end_of_vfork(int number)
{
    pid_t pid = vfork();
    if (pid == 0)
        some_end(number);
    return pid;
}

static __attribute__((noinline)) pid_t some_end_of_number(int number)
{
    if (!on_uslub())
        return some_end_of_vfork(number);
    pid_t pid = (pid_t)syscall(SYS_clone, SHARED, 0, 0, 0, 0);
    if (pid == 0)
        some_end(number);
    return pid;
}

static void *parent(void *argument)
{
    static const int expected[] = {SIGKILL, 9 << 8, 0};
    char *stack = new_stack();
    for (int i = (int)(intptr_t)argument; i < 240; i += 4) {
        void *number = (void *)(intptr_t)i;
        switch (i / 4 % 3) {
        case 0:
            reap(some_end_of_vfork(i), "vfork", i, expected[i % 3]);
            break;
        case 1:
            reap(clone(some_end_of_clone, stack + STACK, SHARED, number), "clone", i, expected[i % 3]);
            break;
        default:
            reap(some_end_of_number(i), "a system call", i, expected[i % 3]);
        }
        take_and_give((uint64_t)i | 95ull << 40, 20);
    }
    munmap(stack, STACK);
    return NULL;
}

static void many(void)
{
    pthread_t thread[4];
    int64_t before = best();
    begin(1);
    for (uintptr_t t = 0; t < 4; t++)
        CHECK(pthread_create(&thread[t], NULL, parent, (void *)t) == 0, "pthread_create");
    for (int t = 0; t < 4; t++)
        pthread_join(thread[t], NULL);
    end();
    int64_t after = best();
    CHECK(after < 8 * before, "2000 pairs took %ld ns before and %ld ns after", (long)before, (long)after);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"vfork", vforks}, {"clone", clones}, {"lives", lives}, {"number", numbers},
        {"thread", threads}, {"fork", forks}, {"spawn", spawns}, {"many", many}};
    start();
    for (size_t i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++)
        if (strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run();
            printf("sharing: ok, %s, validate %s\n", argv[1], validate());
            return 0;
        }
    FAIL("sharing vfork|clone|lives|number|thread|fork|spawn|many");
}
