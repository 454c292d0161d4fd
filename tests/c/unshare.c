/*
 * Proves that a single-threaded program stays single-threaded: it takes and
 * frees 200 MB, waits 3 s, in which a helper may want to start, and then does
 * what the kernel allows only to a process with one thread:
 * unshare(CLONE_NEWUSER). EPERM (user namespaces are switched off) is a skip.
 */
#include "common.h"
#include <dirent.h>
#include <sched.h>

static void *table[4000];

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

int main(void)
{
    start();
    for (int i = 0; i < 4000; i++) {
        table[i] = hide(malloc(50000));
        CHECK(table[i] != NULL, "malloc");
        memset(table[i], i, 50000);
    }
    for (int i = 0; i < 4000; i++)
        free(table[i]);
    sleep_ms(3000);
    printf("unshare: %d threads\n", threads());
    fflush(stdout);
    if (unshare(CLONE_NEWUSER) != 0) {
        if (errno == EPERM || errno == ENOSYS || errno == ENOSPC) {
            say("unshare: skipped: no user namespaces here (errno %d)", errno);
            return 0;
        }
        FAIL("unshare(CLONE_NEWUSER) is refused: the process is not single-threaded");
    }
    free(hide(malloc(100000)));
    printf("unshare: ok, validate %s\n", validate());
    return 0;
}
