/*
 * Proves that nothing is lost whatever is interrupted: rounds of allocations of
 * all sizes, each block verified when it goes. After each round the program stops
 * itself, so that a tracer can choose what to interrupt in the next.
 *
 * By hand (without the stops):  ./aborted 100 0
 */
#include "common.h"
#include <signal.h>

#define KEPT 600
#define CALLS 3000

static struct {
    void *p;
    size_t n;
    uint64_t seed;
} kept[KEPT];

static void drop(size_t i)
{
    verify(kept[i].p, kept[i].n, kept[i].seed, "block");
    free(kept[i].p);
    kept[i].p = NULL;
}

static void take(size_t i, uint64_t *random)
{
    size_t n = log_size(random, 14) + 1;
    void *p;
    switch (next_random(random) % 8) {
    case 0:
        p = hide(calloc(1, n));
        for (size_t b = 0; b < n; b++)
            CHECK(((char *)p)[b] == 0, "calloc(%zu): byte %zu", n, b);
        break;
    case 1:
        p = hide(aligned_alloc(64, n));
        CHECK((uintptr_t)p % 64 == 0, "aligned_alloc(64, %zu): %p", n, p);
        break;
    case 2:
        p = hide(realloc(hide(malloc(n / 2 + 1)), n));
        break;
    default:
        p = hide(malloc(n));
    }
    CHECK(p != NULL, "%zu bytes", n);
    kept[i].p = p;
    kept[i].n = n;
    kept[i].seed = next_random(random);
    fill(p, n, kept[i].seed);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    int stops = argc > 2 ? atoi(argv[2]) : 1;
    uint64_t random = 1;
    for (int round = 0; round < rounds; round++) {
        if (stops)
            raise(SIGSTOP);
        for (int call = 0; call < CALLS; call++) {
            size_t i = next_random(&random) % KEPT;
            if (kept[i].p != NULL)
                drop(i);
            else
                take(i, &random);
        }
        /* Now and then everything, so that sheaves run full. */
        for (size_t i = 0; round % 8 == 7 && i < KEPT; i++)
            if (kept[i].p != NULL)
                drop(i);
    }
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i].p != NULL)
            drop(i);
    printf("aborted: ok, %d rounds, validate %s\n", rounds, validate());
    return 0;
}
