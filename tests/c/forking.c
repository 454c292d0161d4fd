/*
 * Proves that a process may be copied in any way at any moment.
 *
 *   ways HOW THREADS   children of 0 fork, 1 _Fork, 2 syscall(SYS_fork),
 *                      3 syscall(SYS_clone), 4 the bare instruction, while threads
 *                      allocate; they use what they inherit, and have children too
 *   handlers THREADS   an alarm's handler forks, while the program allocates, and without
 *                      threads also while it forks itself
 *   streams            fork against fflush(NULL) and getline (glibc bug 19431)
 *   names              fork against getpwnam, and against dlopen and dlclose
 *   exits              many threads that fork and end, and children that do the same
 *   torn               children that find structures half changed start over
 *
 * No child may hang (each has 20 s), and no block may be damaged.
 */
#include "common.h"
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

static atomic_int stopping;

static void wait_for(pid_t pid, const char *what)
{
    int status;
    pid_t got;
    CHECK(pid > 0, "%s", what);
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        continue;
    CHECK(got == pid, "waitpid of %s", what);
    CHECK(status == 0, "%s: status %x%s", what, status, status == SIGALRM ? ": it hung" : "");
}

static pid_t born(int how)
{
    switch (how) {
    case 0:
        return fork();
    case 1: {
        pid_t (*function)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");
        return function ? function() : fork();
    }
    case 2:
#ifdef SYS_fork
        return (pid_t)syscall(SYS_fork);
#endif
    case 3:
        return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    default: {
#ifdef __x86_64__
        register long number __asm__("rax") = SYS_fork;
        __asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
        return (pid_t)number;
#elif defined __aarch64__
        register long number __asm__("x8") = SYS_clone;
        register long a __asm__("x0") = SIGCHLD;
        register long b __asm__("x1") = 0, c __asm__("x2") = 0, d __asm__("x3") = 0, e __asm__("x4") = 0;
        __asm__ volatile("svc 0" : "+r"(a) : "r"(number), "r"(b), "r"(c), "r"(d), "r"(e) : "memory");
        return (pid_t)a;
#else
        return fork();
#endif
    }
    }
}

/* Blocks of all kinds that children inherit. */
static const size_t old_sizes[] = {1, 16, 40, 100, 333, 1024, 3000, 8192, 10000, 70000, 200000, 300000, MIB};
#define OLD (sizeof old_sizes / sizeof *old_sizes)
static void *old[OLD];
static size_t old_usable[OLD];

static void make_old(void)
{
    for (size_t i = 0; i < OLD; i++) {
        old[i] = malloc(old_sizes[i]);
        CHECK(old[i] != NULL, "malloc(%zu)", old_sizes[i]);
        fill(old[i], old_sizes[i], i);
        old_usable[i] = malloc_usable_size(old[i]);
    }
}

/* A child looks at what it inherited, resizes some of it, and frees all. */
static void use_old(void)
{
    for (size_t i = 0; i < OLD; i++) {
        size_t n = old_sizes[i];
        CHECK(malloc_usable_size(old[i]) == old_usable[i], "old block %zu: usable %zu, was %zu", n,
              malloc_usable_size(old[i]), old_usable[i]);
        verify(old[i], n, i, "old block");
        if (i % 2 == 0) {
            old[i] = realloc(old[i], 3 * n);
            CHECK(old[i] != NULL, "realloc to %zu", 3 * n);
            verify(old[i], n, i, "old block that grew");
            fill(old[i], 3 * n, i);
            old[i] = realloc(old[i], n / 2 + 1);
            CHECK(old[i] != NULL, "realloc to %zu", n / 2 + 1);
        }
        free(old[i]);
        old[i] = NULL;
    }
}

static void churn(uint64_t random, int count, unsigned bits)
{
    struct {
        void *p;
        size_t n;
    } slot[100] = {{0}};
    for (int k = 0; k < count + 100; k++) {
        size_t i = k < count ? next_random(&random) % 100 : (size_t)(k - count);
        if (slot[i].p != NULL) {
            verify(slot[i].p, slot[i].n, i, "block");
            free(slot[i].p);
            slot[i].p = NULL;
        }
        if (k < count) {
            slot[i].n = log_size(&random, bits);
            slot[i].p = malloc(slot[i].n);
            CHECK(slot[i].p != NULL, "malloc(%zu)", slot[i].n);
            fill(slot[i].p, slot[i].n, i);
        }
    }
}

static void *churning(void *argument)
{
    for (uint64_t i = 0; !atomic_load(&stopping); i++)
        churn((uintptr_t)argument + i, 1000, 17);
    return NULL;
}

static void *nothing(void *argument)
{
    free(hide(malloc(5000)));
    return argument;
}

#define MOST 8
static pthread_t thread[MOST];

static void begin(int count, void *(*work)(void *))
{
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 3)) == 0, "a thread");
}

static void ways(int how, int threads)
{
    churn(1, 5000, 17);
    make_old();
    begin(threads, churning);
    for (int i = 0; i < 60; i++) {
        pid_t pid = born(how);
        if (pid == 0) {
            alarm(20);
            churn((uint64_t)i, 1000, 17);
            use_old();
            if (i % 4 == 0) {
                make_old();
                pid_t grandchild = born(i % 5);
                if (grandchild == 0) {
                    alarm(20);
                    use_old();
                    _exit(0);
                }
                wait_for(grandchild, "a grandchild");
            }
            if (how == 0 && i % 4 == 1) {
                pthread_t other;
                CHECK(pthread_create(&other, NULL, nothing, NULL) == 0, "a thread in a child");
                pthread_join(other, NULL);
            }
            _exit(0);
        }
        wait_for(pid, "a child");
        churn((uint64_t)i, 200, 17);
    }
}

#define HANDLED 300
static volatile sig_atomic_t handled;

/* One alarm: its handler asks for the next at its end, so that the program goes on in between
 * however long a fork takes. */
static void next_alarm(void)
{
    struct itimerval soon = {{0, 0}, {0, 900}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void handler(int signal)
{
    (void)signal;
    int before = errno;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    if (++handled < HANDLED)
        next_alarm();
    errno = before;
}

static void handlers(int threads)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval never = {{0, 0}, {0, 0}};
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigaction(SIGALRM, &action, NULL);
    /* Only this thread is interrupted. */
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    begin(threads, churning);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    next_alarm();
    for (int i = 0; handled < HANDLED; i++) {
        churn((uint64_t)i, 50, 17);
        if (threads > 0)
            continue; /* with threads, the C library's own fork must not be interrupted by another */
        pid_t pid = fork();
        if (pid == 0) {
            setitimer(ITIMER_REAL, &never, NULL);
            pthread_sigmask(SIG_BLOCK, &alarms, NULL);
            churn((uint64_t)i, 300, 17);
            _exit(0);
        }
        wait_for(pid, "a child that was made between handlers");
    }
}

static void *flushing(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping))
        fflush(NULL);
    return NULL;
}

static void *reading(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping)) {
        FILE *file = fopen("/proc/self/maps", "r");
        CHECK(file != NULL, "fopen");
        char *line = NULL;
        size_t n = 0;
        while (getline(&line, &n, file) > 0) {
            free(line); /* so that the next one allocates under the stream's lock */
            line = NULL;
            n = 0;
        }
        free(line);
        fclose(file);
    }
    return NULL;
}

static void forks(int count)
{
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            churn((uint64_t)i, 100, 17);
            fflush(NULL);
            FILE *file = fopen("/dev/null", "w");
            CHECK(file != NULL && fprintf(file, "%d\n", i) > 0 && fclose(file) == 0, "a stream in a child");
            _exit(0);
        }
        wait_for(pid, "a child");
    }
}

static void streams(void)
{
    begin(2, flushing);
    for (int i = 2; i < 5; i++)
        CHECK(pthread_create(&thread[i], NULL, reading, NULL) == 0, "a thread");
    forks(150);
}

static void *naming(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping)) {
        struct passwd *entry = getpwnam("root");
        CHECK(entry == NULL || entry->pw_uid == 0, "root is another");
    }
    return NULL;
}

static void *loading(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping)) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (library != NULL) {
            CHECK(dlsym(library, "cos") != NULL, "no cos");
            dlclose(library);
        }
    }
    return NULL;
}

static void names(void)
{
    begin(1, naming);
    for (int i = 1; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, loading, NULL) == 0, "a thread");
    CHECK(pthread_create(&thread[3], NULL, churning, NULL) == 0, "a thread");
    forks(100);
}

static void *forking(void *argument)
{
    uintptr_t depth = (uintptr_t)argument;
    free(hide(malloc(100)));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        churn(depth, 100, 17);
        if (depth > 0) {
            pthread_t other;
            CHECK(pthread_create(&other, NULL, forking, (void *)(depth - 1)) == 0, "a thread in a child");
            pthread_join(other, NULL);
        }
        _exit(0);
    }
    wait_for(pid, "a child of a thread");
    return NULL;
}

static void exits(void)
{
    for (int round = 0; round < 15; round++) {
        for (int i = 0; i < MOST; i++)
            CHECK(pthread_create(&thread[i], NULL, forking, (void *)(uintptr_t)(i % 3)) == 0, "a thread");
        churn((uint64_t)round, 1000, 17);
        for (int i = 0; i < MOST; i++)
            pthread_join(thread[i], NULL);
    }
}

/* Holds the lock of huge blocks most of the time: the system moves them under it. */
static void *moving(void *argument)
{
    (void)argument;
    while (!atomic_load(&stopping)) {
        void *p = malloc(MIB);
        for (size_t i = 0; i < 20; i++)
            CHECK((p = realloc(p, MIB << (i % 2 + 1))) != NULL, "realloc");
        free(p);
    }
    return NULL;
}

/* How often this process or its parents have started over; 0 under another allocator. */
static int times_started_over(void)
{
    char *text = NULL;
    size_t n = 0;
    int times = 0;
    FILE *file = open_memstream(&text, &n);
    CHECK(file != NULL && malloc_info(0, file) == 0 && fclose(file) == 0, "malloc_info");
    char *line = strstr(text, "<former count=\"");
    if (line != NULL)
        times = atoi(line + strlen("<former count=\""));
    free(text);
    return times;
}

static int is_uslub(void)
{
    return dlsym(RTLD_DEFAULT, "uslub_validate") != NULL;
}

static void torn(void)
{
    int started_over = 0;
    make_old();
    begin(2, moving);
    CHECK(pthread_create(&thread[2], NULL, churning, NULL) == 0, "a thread");
    time_t end = time(NULL) + 30;
    for (int i = 0; i < 100 || (is_uslub() && started_over < 3 && time(NULL) < end); i++) {
        pid_t pid = born(4);
        if (pid == 0) {
            alarm(20);
            churn((uint64_t)i, 500, 17);
            int times = times_started_over();
            use_old();
            make_old();
            pid_t grandchild = born(i % 5);
            if (grandchild == 0) {
                alarm(20);
                CHECK(times_started_over() == times, "a child of one thread started over");
                use_old();
                _exit(0);
            }
            wait_for(grandchild, "a grandchild");
            use_old();
            int (*validate)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "uslub_validate");
            CHECK(times == 0 || validate() == 0, "a new world is not valid");
            _exit(times);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= 1, "child %d: status %x%s", i, status,
              status == SIGALRM ? ": it hung" : "");
        started_over += WEXITSTATUS(status);
    }
    CHECK(!is_uslub() || started_over > 0, "no child found anything half changed");
    printf("forking: %d children started over\n", started_over);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "ways";
    int first = argc > 2 ? atoi(argv[2]) : 0, second = argc > 3 ? atoi(argv[3]) : 0;
    if (strcmp(mode, "ways") == 0)
        ways(first, second);
    else if (strcmp(mode, "handlers") == 0)
        handlers(first);
    else if (strcmp(mode, "streams") == 0)
        streams();
    else if (strcmp(mode, "names") == 0)
        names();
    else if (strcmp(mode, "exits") == 0)
        exits();
    else if (strcmp(mode, "torn") == 0)
        torn();
    else
        FAIL("unknown mode %s", mode);
    atomic_store(&stopping, 1);
    printf("forking: ok, %s\n", mode);
    fflush(stdout);
    _exit(0);
}
