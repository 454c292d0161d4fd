/*
 * Proves that a single-threaded program that locks itself up notices nothing:
 * it takes and frees 200 MB, then allows itself only the system calls that
 * malloc is known for (read write exit_group rt_sigreturn brk mmap munmap
 * madvise mprotect mremap futex; any other kills it), computes for 2 s, in
 * which no helper may appear, and takes and frees 200 MB again.
 *
 *   sandbox        leaves by _exit
 *   sandbox exit   leaves by exit, so that destructors of libraries run too
 */
#include "common.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "name this architecture for seccomp"
#endif

#define TOTAL ((size_t)200 * 1000 * 1000)
static void *table[100000];

static void take_and_give(uint64_t random)
{
    size_t bytes = 0, count = 0;
    while (bytes < TOTAL && count < sizeof table / sizeof *table) {
        size_t n = log_size(&random, 16) + 100;
        if (count % 1000 == 0)
            n = 5 * MIB;
        table[count] = hide(count % 3 ? malloc(n) : calloc(1, n));
        CHECK(table[count] != NULL, "malloc(%zu)", n);
        memset(table[count], (int)n, n);
        if (count % 16 == 0) {
            table[count] = hide(realloc(table[count], n * 2));
            CHECK(table[count] != NULL, "realloc to %zu", n * 2);
        }
        count++;
        bytes += n;
    }
    for (size_t i = 0; i < count; i++)
        free(table[i]);
    malloc_trim(0);
}

#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void lock_up(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(exit_group), ALLOW(rt_sigreturn), ALLOW(brk), ALLOW(mmap),
        ALLOW(munmap), ALLOW(madvise), ALLOW(mprotect), ALLOW(mremap), ALLOW(futex),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        say("sandbox: skipped: seccomp filters are not to be had here (errno %d)", errno);
        _exit(0);
    }
}

static uint64_t spin(uint64_t rounds)
{
    uint64_t x = 1;
    for (uint64_t i = 0; i < rounds; i++)
        x = mix(x + opaque(i));
    return x;
}

int main(int argc, char **argv)
{
    start();
    take_and_give(1);
    /* how much work two seconds are, as clocks may need a system call */
    uint64_t rounds = 1000000;
    int64_t begin = now_ms();
    uint64_t rate = 0;
    while (now_ms() - begin < 200) {
        spin(rounds);
        rate += rounds;
    }
    lock_up();
    spin(rate * 10);
    take_and_give(2);
    spin(rate);
    take_and_give(3);
    static const char text[] = "sandbox: ok\n";
    if (write(1, text, sizeof text - 1) < 0)
        _exit(1);
    if (argc > 1 && strcmp(argv[1], "exit") == 0)
        exit(0);
    _exit(0);
}
