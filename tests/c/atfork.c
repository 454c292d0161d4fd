/*
 * Proves that fork handlers of other libraries may allocate, whatever the
 * order of registration: the library (atfork_lib.c) registers its handlers
 * before ours if it is linked with -z initfirst, and once more behind ours.
 * Threads may allocate meanwhile.
 *
 * By hand:  cc -O2 -shared -fPIC -Wl,-z,initfirst atfork_lib.c -o libatfork.so
 *           cc -O2 -pthread atfork.c ./libatfork.so -o atfork && ./atfork [THREADS]
 */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

extern int atfork_calls[3];
extern void atfork_register(void);
static volatile int stopping;

static void *churn(void *argument)
{
    uint64_t random = (uintptr_t)argument + 1;
    void *slot[100] = {0};
    while (!stopping) {
        size_t i = next_random(&random) % 100;
        free(slot[i]);
        slot[i] = malloc(log_size(&random, 18));
    }
    for (size_t i = 0; i < 100; i++)
        free(slot[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    pthread_t thread[8];
    atfork_register();
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)i) == 0, "a thread");
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0) {
            alarm(20);
            CHECK(atfork_calls[2] == 2, "the child's handlers ran %d times", atfork_calls[2]);
            for (size_t n = 1; n < 300000; n += n / 3 + 1)
                free(hide(malloc(n)));
            if (i % 4 == 0) {
                pid_t grandchild = fork();
                if (grandchild == 0)
                    _exit(0);
                int status;
                CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0, "status %x", status);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(status == 0, "child %d: status %x%s", i, status, status == SIGALRM ? ": it hung" : "");
    }
    CHECK(atfork_calls[0] == 40 && atfork_calls[1] == 40, "%d and %d calls", atfork_calls[0], atfork_calls[1]);
    stopping = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    puts("atfork: ok");
    return 0;
}
