/* Threads that allocate, hand blocks to each other, and check each byte. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 100000, SLOTS = 1024 };

struct block {
    size_t size;
    unsigned char bytes[];
};

static struct block *slots[SLOTS];
static pthread_mutex_t locks[SLOTS];

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static struct block *make(uint64_t number)
{
    size_t size = number % 64 ? number % 700 : number % 200000;
    struct block *block = malloc(sizeof *block + size);
    if (!block)
        abort();
    block->size = size;
    memset(block->bytes, (int)(size % 251), size);
    return block;
}

static uint64_t check_and_free(struct block *block)
{
    if (!block)
        return 0;
    for (size_t at = 0; at < block->size; at++)
        if (block->bytes[at] != block->size % 251)
            abort();
    free(block);
    return 1;
}

static void *work(void *argument)
{
    uint64_t state = 88172645463325252u + (uintptr_t)argument, freed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t number = next(&state);
        size_t slot = number % SLOTS;
        struct block *fresh = make(number >> 16);
        pthread_mutex_lock(&locks[slot]);
        struct block *old = slots[slot];
        slots[slot] = fresh;
        pthread_mutex_unlock(&locks[slot]);
        freed += check_and_free(old);
    }
    return (void *)(uintptr_t)freed;
}

int main(void)
{
    pthread_t threads[THREADS];
    uint64_t freed = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        pthread_mutex_init(&locks[slot], NULL);
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        if (pthread_create(&threads[thread], NULL, work, (void *)(thread * 7919)))
            abort();
    for (int thread = 0; thread < THREADS; thread++) {
        void *result;
        pthread_join(threads[thread], &result);
        freed += (uintptr_t)result;
    }
    for (int slot = 0; slot < SLOTS; slot++)
        freed += check_and_free(slots[slot]);

    char *text = NULL;
    size_t length = 0;
    for (int number = 0; number < 50000; number++) {
        text = realloc(text, length + 16);
        if (!text)
            abort();
        length += (size_t)sprintf(text + length, "%d,", number);
    }
    void *aligned;
    if (posix_memalign(&aligned, 4096, 10000) || (uintptr_t)aligned % 4096)
        abort();
    memset(aligned, 1, 10000);
    int *zeros = calloc(300000, sizeof *zeros);
    for (int at = 0; at < 300000; at++)
        if (zeros[at])
            abort();
    printf("%llu blocks, %zu bytes, ends with %s\n", (unsigned long long)freed, length,
           text + length - 12);
    free(zeros);
    free(aligned);
    free(text);
    return 0;
}
