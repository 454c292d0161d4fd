/*
 * Not a test by itself: starts a program to which the kernel refuses some system calls.
 *
 *   refuse NAME=ERRNO[,NAME=ERRNO…] PROGRAM [ARGUMENT…]
 *
 * NAME is membarrier, madvise, mremap, rseq, getcpu, sched_getaffinity, getrandom, sysinfo, get_mempolicy
 * or mbind; ERRNO a number. Says "refuse: skipped" and exits 0 where seccomp filters are not to be had.
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#ifndef SYS_rseq
#define SYS_rseq 334
#endif

static const struct {
    const char *name;
    unsigned number;
} calls[] = {
    {"membarrier", SYS_membarrier}, {"madvise", SYS_madvise}, {"mremap", SYS_mremap}, {"rseq", SYS_rseq},
    {"getcpu", SYS_getcpu}, {"sched_getaffinity", SYS_sched_getaffinity}, {"getrandom", SYS_getrandom},
    {"sysinfo", SYS_sysinfo}, {"get_mempolicy", SYS_get_mempolicy}, {"mbind", SYS_mbind},
};

int main(int argc, char **argv)
{
    CHECK(argc > 2, "refuse NAME=ERRNO[,NAME=ERRNO] PROGRAM [ARGUMENT...]");
    struct sock_filter filter[64] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    unsigned short length = 1;
    for (char *word = strtok(argv[1], ","); word != NULL; word = strtok(NULL, ",")) {
        char *value = strchr(word, '=');
        CHECK(value != NULL, "no number in %s", word);
        *value++ = 0;
        size_t i = 0;
        while (i < sizeof calls / sizeof *calls && strcmp(calls[i].name, word) != 0)
            i++;
        CHECK(i < sizeof calls / sizeof *calls, "unknown call %s", word);
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)atoi(value));
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        say("refuse: skipped: seccomp filters are not to be had here (errno %d)", errno);
        return 0;
    }
    execv(argv[2], argv + 2);
    FAIL("%s cannot be started", argv[2]);
}
