/*
 * Runs a program and writes what it used to a file: user and system time in
 * microseconds, peak resident memory in KiB (the largest process of its tree),
 * and its wait status.
 *
 * The kernel carries the peak of the launching process over an exec, so the
 * launcher itself must be small: static, no libraries, vfork instead of fork.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long long microseconds(struct timeval time)
{
    return time.tv_sec * 1000000LL + time.tv_usec;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: launch RESULT PROGRAM [ARGUMENT...]\n", stderr);
        return 2;
    }
    pid_t child = vfork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    struct rusage used;
    if (child < 0 || wait4(child, &status, 0, &used) != child) {
        perror("launch");
        return 1;
    }
    FILE *result = fopen(argv[1], "w");
    if (!result) {
        perror(argv[1]);
        return 1;
    }
    fprintf(result, "%lld %lld %ld %d\n", microseconds(used.ru_utime),
            microseconds(used.ru_stime), used.ru_maxrss, status);
    return fclose(result) ? 1 : 0;
}
