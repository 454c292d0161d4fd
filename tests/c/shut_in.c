/*
 * Proves that a program may forbid itself all system calls but those that
 * malloc is known for, and that malloc goes on working:
 *
 *   shut_in HOW [m][r][t]
 *
 * HOW is how the filter comes: `bare` by the instruction itself, which no
 * library sees, `prctl` or `syscall` by the C library. Any call but brk, mmap,
 * munmap, mprotect, futex, read, write, exit, exit_group and rt_sigreturn kills
 * the process; m allows madvise, r mremap, t what the C library needs to start
 * and end a thread, and then the work is done by new threads too.
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* How much the C library has registered for restartable sequences; it asks in each new thread if it has. */
extern const unsigned __rseq_size __attribute__((weak));

static long bare(long number, long a, long b, long c)
{
#if defined(__x86_64__)
    long result;
    register long d __asm__("r10") = 0;
    register long e __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#else
#error "name this architecture's system call"
#endif
}

static struct sock_filter filter[100];
static unsigned short length;

static void add(struct sock_filter one)
{
    filter[length++] = one;
}

static void allow(long number)
{
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

static void shut_in(const char *how, const char *what)
{
    static const long always[] = { SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_futex, SYS_read,
                                   SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn };
    static const long threads[] = { SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rt_sigprocmask,
                                    SYS_rt_sigaction, SYS_madvise };
    /* glibc's own malloc counts the CPUs when a second thread calls it */
    static const long of_glibc[] = { SYS_openat, SYS_close, SYS_sched_getaffinity, SYS_mremap };
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        allow(always[i]);
    if (strchr(what, 'm'))
        allow(SYS_madvise);
    if (strchr(what, 'r'))
        allow(SYS_mremap);
    if (strchr(what, 't')) {
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
            allow(threads[i]);
        if (&__rseq_size != NULL && __rseq_size != 0)
            allow(SYS_rseq);
        for (size_t i = 0; !on_uslub() && i < sizeof of_glibc / sizeof *of_glibc; i++)
            allow(of_glibc[i]);
    }
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    struct sock_fprog program = { length, filter };
    long result;
    if (strcmp(how, "bare") == 0) {
        bare(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0);
        result = bare(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program);
    } else {
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
        if (strcmp(how, "prctl") == 0)
            result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
        else
            result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    }
    if (result != 0) {
        say("shut_in: skipped: no seccomp filters here (%ld)", result);
        _exit(0);
    }
}

#define SMALL 60000
#define HUGE_ONES 12

struct work {
    unsigned index;
    int resizes;
};

/* Small objects, large ones, huge ones: up to 100 MB, several times. */
static void *work(void *argument)
{
    struct work *my = argument;
    void **objects = hide(malloc(SMALL * sizeof *objects));
    CHECK(objects != NULL, "malloc");
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < SMALL; i++) {
            size_t bytes = i % 300 == 0 ? 20000 + i % 7 * 10000 : 16 + (i + my->index) % 1500;
            objects[i] = hide(i % 2 ? malloc(bytes) : calloc(1, bytes));
            CHECK(objects[i] != NULL, "malloc(%zu)", bytes);
            memset(objects[i], (int)i, bytes);
        }
        /* all but one of 64, so that only parts of the blocks become free */
        for (unsigned i = 0; i < SMALL; i++)
            if (i % 64 != 0) {
                free(objects[i]);
                objects[i] = NULL;
            }
        for (unsigned i = 0; i < HUGE_ONES; i++) {
            size_t bytes = (1 + (i + (unsigned)round) % 4) * MIB;
            char *huge = hide(malloc(bytes));
            CHECK(huge != NULL, "malloc(%zu)", bytes);
            memset(huge, 1, bytes);
            if (my->resizes) {
                huge = hide(realloc(huge, 2 * bytes));
                CHECK(huge != NULL && huge[bytes - 1] == 1, "realloc to %zu", 2 * bytes);
            }
            free(huge);
        }
        for (unsigned i = 0; i < SMALL; i += 64)
            free(objects[i]);
    }
    free(objects);
    return NULL;
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc >= 2, "arguments");
    const char *what = argc > 2 ? argv[2] : "";
    free(hide(malloc(10)));
    shut_in(argv[1], what);
    struct work all[4];
    for (unsigned i = 0; i < 4; i++)
        all[i] = (struct work){ i, strchr(what, 'r') != NULL };
    work(&all[0]);
    if (strchr(what, 't')) {
        pthread_t threads[4];
        for (unsigned i = 1; i < 4; i++)
            CHECK(pthread_create(&threads[i], NULL, work, &all[i]) == 0, "pthread_create");
        for (unsigned i = 1; i < 4; i++)
            CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
        work(&all[0]);
    }
    static const char text[] = "shut_in: ok\n";
    if (write(1, text, sizeof text - 1) < 0)
        _exit(1);
    _exit(0);
}
