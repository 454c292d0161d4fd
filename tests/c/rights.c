/*
 * Proves that no thread of the process keeps rights that the program gave up,
 * even one that the program did not start:
 *
 *   rights WAY        by the C library: afterwards all threads agree at once
 *   rights bare WAY   by the instruction itself: they agree within seconds
 *
 * It takes and frees 40 MB, so that a helper may start (under `uslub run` it
 * must), gives rights up in the WAY that is named, and compares the rights in
 * /proc/self/task/<each>/status. Then it does so again: a new helper must be as
 * the program is then. WAY is named below. Not being root is a skip.
 */
#include "common.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

#define ID 65534
#define WAIT_MS 10000

static const char *const names[] = { "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:",
                                     "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:" };

/* The rights of a thread, or "" if it has ended. */
static void rights_of(const char *thread, char *into, size_t room)
{
    static char text[8192];
    char path[300];
    into[0] = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n < 0 ? 0 : n] = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0) {
                strncat(into, line, room - strlen(into) - 1);
                strncat(into, "; ", room - strlen(into) - 1);
            }
}

static int threads;
static char first[2000], other[2000];

static int agree(void)
{
    char own[20];
    snprintf(own, sizeof own, "%d", (int)getpid());
    rights_of(own, first, sizeof first);
    CHECK(first[0] != 0, "/proc/self/task");
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL, "/proc/self/task");
    int same = 1;
    threads = 0;
    for (struct dirent *e; (e = readdir(tasks)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        threads++;
        rights_of(e->d_name, other, sizeof other);
        same &= other[0] == 0 || strcmp(first, other) == 0;
        if (!same)
            break;
    }
    closedir(tasks);
    return same;
}

static void take_and_give(void)
{
    static void *table[400];
    for (int i = 0; i < 400; i++) {
        table[i] = hide(malloc(100000));
        CHECK(table[i] != NULL, "malloc");
        memset(table[i], i, 100000);
    }
    for (int i = 0; i < 400; i++)
        free(table[i]);
}

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

static struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
static struct __user_cap_data_struct none[2];
static gid_t group = ID;
static struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
static struct sock_fprog filter = { 1, all };

int capset(struct __user_cap_header_struct *to, const struct __user_cap_data_struct *data);

static long by_library(const char *way)
{
#define WAY(name, call)         \
    if (strcmp(way, name) == 0) \
    return call
    WAY("setuid", setuid(ID));
    WAY("setgid", setgid(ID));
    WAY("seteuid", seteuid(ID));
    WAY("setegid", setegid(ID));
    WAY("setreuid", setreuid(ID, ID));
    WAY("setregid", setregid(ID, ID));
    WAY("setresuid", setresuid(ID, ID, ID));
    WAY("setresgid", setresgid(ID, ID, ID));
    WAY("setgroups", setgroups(1, &group));
    WAY("initgroups", initgroups("nobody", ID - 1));
    WAY("setfsuid", setfsuid(ID));
    WAY("setfsgid", setfsgid(ID));
    WAY("capset", capset(&header, none));
    WAY("capbset", prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0));
    WAY("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    WAY("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0));
    WAY("syscall_setuid", syscall(SYS_setuid, ID));
    WAY("syscall_setgroups", syscall(SYS_setgroups, 1, &group));
    WAY("syscall_capset", syscall(SYS_capset, &header, none));
    WAY("syscall_prctl", syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    WAY("syscall_seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
    FAIL("no way is named %s", way);
}

static long by_instruction(const char *way)
{
    WAY("setuid", bare(SYS_setresuid, ID, ID, ID));
    WAY("setgid", bare(SYS_setresgid, ID, ID, ID));
    WAY("setgroups", bare(SYS_setgroups, 1, (long)&group, 0));
    WAY("capset", bare(SYS_capset, (long)&header, (long)none, 0));
    WAY("no_new_privs", bare(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0));
    WAY("seccomp", bare(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter));
    FAIL("no way is named %s", way);
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc >= 2, "arguments");
    int is_bare = argc > 2;
    const char *way = argv[argc - 1];
    if (geteuid() != 0) {
        say("rights: skipped: not root");
        return 0;
    }
    take_and_give();
    int64_t begin = now_ms();
    if (getenv("USLUB_HELPER") != NULL)
        while (agree(), threads < 2) {
            CHECK(now_ms() - begin < WAIT_MS, "no helper starts");
            take_and_give();
            sleep_ms(20);
        }
    long result = is_bare ? by_instruction(way) : by_library(way);
    CHECK(result == 0 || strncmp(way, "setfs", 5) == 0, "%s", way);
    begin = now_ms();
    while (!agree()) {
        CHECK(is_bare && now_ms() - begin < WAIT_MS, "threads differ: %s\n  %s", first, other);
        sleep_ms(50);
    }
    begin = now_ms();
    while (now_ms() - begin < 400) {
        take_and_give();
        CHECK(agree(), "threads differ again: %s\n  %s", first, other);
        sleep_ms(50);
    }
    printf("rights: ok\n");
    return 0;
}
