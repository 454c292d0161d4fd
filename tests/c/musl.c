/* A program for the C library musl whose malloc is uslub's: threads, sizes, alignment, children. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        _exit(1);
    }
}

static void *churn(void *seed)
{
    unsigned state = (unsigned)(uintptr_t)seed;
    unsigned char *held[64] = { NULL };

    for (int i = 0; i < 100000; i++) {
        state = state * 1103515245u + 12345u;
        unsigned place = (state >> 8) % 64, bytes = 1 + (state >> 16) % 3000;
        if (held[place])
            need(held[place][0] == (unsigned char)place, "a block keeps its contents");
        free(held[place]);
        held[place] = malloc(bytes);
        need(held[place] != NULL, "malloc");
        memset(held[place], (int)place, bytes);
    }
    for (int i = 0; i < 64; i++)
        free(held[i]);
    return NULL;
}

static unsigned left;

/* Ends while other threads take the CPU away. A detached thread unmaps its own stack. */
static void *leaves(void *unused)
{
    void *block = malloc(100);
    need(block != NULL, "malloc");
    free(block);
    __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void detached(void)
{
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 20; i++) {
            __atomic_fetch_add(&left, 1, __ATOMIC_SEQ_CST);
            need(pthread_create(&thread, &attributes, leaves, NULL) == 0, "pthread_create");
        }
        while (__atomic_load_n(&left, __ATOMIC_SEQ_CST) > 0)
            usleep(100);
    }
}

int main(void)
{
    pthread_t threads[4];
    void *block = NULL;
    int status = -1;

    for (uintptr_t i = 0; i < 4; i++)
        need(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0, "pthread_create");
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    detached();
    need(posix_memalign(&block, 4096, 100) == 0 && (uintptr_t)block % 4096 == 0, "posix_memalign");
    block = realloc(block, 3000000);
    need(block != NULL, "realloc");
    free(block);
    pid_t child = fork();
    if (child == 0) {
        churn((void *)9);
        _exit(0);
    }
    need(waitpid(child, &status, 0) == child && status == 0, "the child of a fork allocates");
    FILE *stream = popen("echo hello", "r");
    char line[16] = "";
    need(stream && fgets(line, sizeof line, stream) && !strcmp(line, "hello\n"), "popen");
    need(pclose(stream) == 0, "pclose");
    puts("ok");
    return 0;
}
