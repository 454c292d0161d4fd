/*
 * Proves that a thread may free much and end: what gives memory back afterwards
 * (the helper of `uslub run`) uses nothing of that thread. Its stack is larger
 * than any that the C library keeps, so it is unmapped when the thread ends.
 *
 * By hand:  ./leaving
 */
#include "common.h"
#include <pthread.h>

#define BLOCKS 400000
#define ROUNDS 2

static void *work(void *argument)
{
    void **blocks = malloc(BLOCKS * sizeof *blocks);
    CHECK(blocks != NULL, "an array of blocks");
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(100);
        CHECK(blocks[i] != NULL, "block %zu", i);
        memset(blocks[i], 1, 100);
    }
    for (size_t i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    free(blocks);
    return argument;
}

int main(void)
{
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, 256 * MIB);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        int error = pthread_create(&thread, &large, work, NULL);
        CHECK(error == 0, "pthread_create: %s", strerror(error));
        pthread_join(thread, NULL);
        /* Long enough for a few looks of the helper's, and for its last one at an idle program. */
        struct timespec pause = { 2, 0 };
        nanosleep(&pause, NULL);
    }
    printf("leaving: ok, %d threads\n", ROUNDS);
    return 0;
}
