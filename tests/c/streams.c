/*
 * malloc_stats writes to the stream stderr, as it is at that moment: buffered,
 * it comes in order with what the program prints; opened anew, it goes there.
 * And malloc_trim: at once where there is little to give, but all of it where
 * there is much.
 */
#include "common.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static void in_order(const char *path)
{
    static char buffer[1 << 16], text[1 << 16];
    CHECK(freopen(path, "w", stderr) != NULL, "stderr cannot be opened anew");
    setvbuf(stderr, buffer, _IOFBF, sizeof buffer);
    fputs("before\n", stderr);
    malloc_stats();
    fputs("after\n", stderr);
    fflush(stderr);
    FILE *file = fopen(path, "r");
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    CHECK(length > 14, "malloc_stats wrote nothing to the stream");
    CHECK(strncmp(text, "before\n", 7) == 0, "malloc_stats came before: %.40s", text);
    CHECK(strcmp(text + length - 6, "after\n") == 0 && length > 100, "malloc_stats came after");
}

static void replaced(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *old = stderr;
    stderr = open_memstream(&text, &length);
    malloc_stats();
    fclose(stderr);
    stderr = old;
    CHECK(length > 50, "malloc_stats did not write to the stream that is stderr");
    free(text);
}

static long resident(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(fscanf(file, "%*d %ld", &pages) == 1, "no figures");
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE) / 1024;
}

#define MANY 20000

static void trims(void)
{
    static char *block[MANY];
    static const size_t size[] = {100, 3000, 20000};
    for (int kind = 0; kind < 3; kind++) {
        int count = (int)(20 * MIB / size[kind]) < MANY ? (int)(20 * MIB / size[kind]) : MANY;
        malloc_trim(0);
        long before = resident();
        for (int i = 0; i < count; i++)
            block[i] = memset(hide(malloc(size[kind])), 1, size[kind]);
        long most = resident();
        for (int i = 0; i < count; i++)
            free(block[i]);
        malloc_trim(0);
        long left = resident() - before, grown = most - before;
        CHECK(left < grown / 4, "%ld of %ld KiB are left after a trim", left, grown);
    }
    /* What is little each time must not add up. */
    malloc_trim(0);
    long before = resident();
    for (int i = 0; i < MANY; i++)
        block[i] = memset(hide(malloc(1000)), 1, 1000);
    for (int i = 0; i < MANY; i++) {
        free(block[i]);
        if (i % 20 == 0)
            malloc_trim(0);
    }
    long left = resident() - before;
    CHECK(left < 4096, "%ld KiB are left after many small trims", left);
}

/* Trims with little to give: such calls to the kernel as a trim makes are counted by the parent. */
static void cheap_trims(void)
{
    const int rounds = 200;
    pid_t child = fork();
    if (child == 0) {
        malloc_trim(0);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGSTOP);
        for (int i = 0; i < rounds; i++) {
            free(hide(malloc(100)));
            malloc_trim(0);
        }
        _exit(0);
    }
    int status, calls = 0;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    if (WIFEXITED(status)) {
        CHECK(WEXITSTATUS(status) == 77, "a child ended with %d", status);
        say("skipped: the system calls of a trim (no ptrace)");
        return;
    }
    ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD);
    while (ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child) {
        if (WIFEXITED(status) || WIFSIGNALED(status))
            break;
        struct __ptrace_syscall_info info = {0};
        ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
        if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
            calls += info.entry.nr == SYS_madvise || info.entry.nr == SYS_membarrier;
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %d", status);
    CHECK(calls <= rounds / 4, "%d calls to the kernel for %d trims with little to give", calls, rounds);
}

int main(int count, char **argument)
{
    start();
    CHECK(count == 2, "a file is wanted");
    trims();
    cheap_trims();
    replaced();
    in_order(argument[1]);
    puts("streams: ok");
    return 0;
}
