/*
 * Proves that a process in a new namespace of processes has no thread that it did not start: in the
 * namespace its number is another process's elsewhere, so nobody outside can tell what its threads may do.
 *
 * The child of a fork after unshare(CLONE_NEWPID) takes and frees 80 MB for a second, in which a
 * helper may want to start, and counts its threads. Without the right to unshare it is skipped.
 */
#include "common.h"
#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>

#define BLOCKS 400

static int threads(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    CHECK(directory != NULL, "/proc/self/task");
    for (struct dirent *e; (e = readdir(directory)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(directory);
    return count;
}

static int most_threads(int steps)
{
    static void *block[BLOCKS];
    int most = 0;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < BLOCKS; i++) {
            block[i] = hide(malloc(200000));
            CHECK(block[i] != NULL, "malloc");
            memset(block[i], step, 200000);
        }
        for (int i = 0; i < BLOCKS; i++)
            free(block[i]);
        int now = threads();
        most = now > most ? now : most;
        sleep_ms(20);
    }
    return most;
}

int main(void)
{
    start();
    int before = most_threads(5);
    if (unshare(CLONE_NEWPID) != 0) {
        say("namespace: skipped: no new namespace of processes here (errno %d)", errno);
        return 0;
    }
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        CHECK(getpid() == 1, "the first of its namespace");
        int most = most_threads(20);
        CHECK(most == 1, "%d threads in the new namespace", most);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
    printf("namespace: ok, %d threads before\n", before);
    return 0;
}
