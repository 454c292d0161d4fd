/*
 * Runs under interposer.c: every kind of allocation, threads, forks and trims,
 * while the functions of libc that others wrap are wrapped by functions that
 * allocate. With an argument the wrappers must have been called so often by
 * this program itself. With a second one a block is freed twice.
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/time.h>
#include <sys/wait.h>

extern int interposer_calls(void) __attribute__((weak));

#define BLOCKS 64

static void work(unsigned seed)
{
    static const size_t size[] = {8, 100, 900, 4000, 20000, 100000, 500000, 2500000};
    char *block[BLOCKS];
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            block[i] = hide(malloc(size[(seed + (unsigned)i) % 8]));
            CHECK(block[i] != NULL, "no memory");
            memset(block[i], i, 8);
        }
        for (int i = 0; i < BLOCKS; i++) {
            CHECK(block[i][7] == i, "another block's bytes");
            free(block[i]);
        }
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        sched_getcpu();
    }
}

static void *thread(void *argument)
{
    work((unsigned)(uintptr_t)argument);
    return NULL;
}

int main(int count, char **argument)
{
    start();
    int before = interposer_calls ? interposer_calls() : 0;
    struct timeval now;
    gettimeofday(&now, NULL);
    time(NULL);
    int least = count > 1 ? atoi(argument[1]) : 0;
    CHECK((interposer_calls ? interposer_calls() : 0) - before >= least,
          "the interposer is not in the way");
    if (count > 2) {
        char *block = hide(malloc(600000));
        free(hide(block));
        free(hide(block));
        FAIL("a double free went by");
    }
    work(1);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, thread, (void *)i) == 0, "no thread");
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            work(7);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "a child ended with %d", status);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    malloc_trim(0);
    malloc_stats();
    puts("interposed: ok");
    return 0;
}
