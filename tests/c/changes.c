/*
 * A program that is no longer what it was when it ends: with another user, with
 * another root directory, or in a sandbox in which it may only write and end.
 * Its children are born before and after.
 */
#include "common.h"
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void work(void)
{
    for (size_t i = 0; i < 2000; i++)
        free(hide(malloc(i * 5 + 1)));
}

static void change_root(const char *root)
{
    CHECK(chroot(root) == 0 && chdir("/") == 0, "chroot");
}

static void change_user(void)
{
    CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0, "setuid");
}

/* Everything else ends the process. */
static void enter_sandbox(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}

int main(int count, char **argument)
{
    CHECK(count > 1, "what is to change?");
    work();
    pid_t child = fork();
    int status = 0;
    if (child != 0)
        CHECK(waitpid(child, &status, 0) == child && status == 0, "a child ended with %d", status);
    switch (argument[1][0]) {
    case 'r':
        change_root(argument[2]);
        break;
    case 'u':
        change_user();
        break;
    case 'c': /* closes what is not its own, as daemons do */
        syscall(SYS_close_range, 3, ~0U, 0);
        break;
    case 's':
        enter_sandbox();
        free(hide(malloc(100)));
        _exit(0);
    }
    work();
    return 0;
}
