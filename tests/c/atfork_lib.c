/*
 * A library whose fork handlers allocate, as those of logging libraries do:
 * all kinds of sizes, in all three handlers. See atfork.c.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const size_t sizes[] = {1, 24, 100, 700, 3000, 8000, 40000, 200000, 1 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)

int atfork_calls[3];
void *atfork_kept[SIZES];

static void work(int which)
{
    for (size_t round = 0; round < 200; round++) {
        void *p[SIZES];
        for (size_t i = 0; i < SIZES; i++) {
            p[i] = malloc(sizes[i]);
            if (p[i] == NULL)
                abort();
            memset(p[i], which + 1, sizes[i] < 64 ? sizes[i] : 64);
        }
        for (size_t i = 0; i < SIZES; i++)
            free(i % 2 ? p[i] : realloc(p[i], 2 * sizes[i]));
    }
    /* What one handler keeps, the next one gives back. */
    for (size_t i = 0; i < SIZES; i++) {
        free(atfork_kept[i]);
        atfork_kept[i] = malloc(sizes[i]);
    }
    atfork_calls[which]++;
}

static void prepare(void)
{
    work(0);
}
static void parent(void)
{
    work(1);
}
static void child(void)
{
    work(2);
}

void atfork_register(void)
{
    pthread_atfork(prepare, parent, child);
}

__attribute__((constructor)) static void begin(void)
{
    atfork_register();
}
