/*
 * The library of early.c: its constructors allocate and free, its destructors
 * free, and it has thread-local storage that the loader must find memory for.
 * Linked, it runs before libc's user sees main; loaded, it comes and goes.
 */
#include "common.h"

#define BLOCKS 24
static void *first[BLOCKS], *second[BLOCKS];
static __thread char local[20000];

static size_t size_of(int i)
{
    static const size_t size[] = {1, 24, 100, 1000, 5000, 40000, 70000, 200000};
    return size[i % 8];
}

static void take(void **block)
{
    for (int i = 0; i < BLOCKS; i++) {
        free(hide(malloc(size_of(i + 3))));
        block[i] = hide(i % 2 ? malloc(size_of(i)) : calloc(1, size_of(i)));
        CHECK(block[i] != NULL, "a constructor got NULL for %zu bytes", size_of(i));
        CHECK(i % 2 || all_zero(block[i], size_of(i)), "calloc in a constructor is not zero");
        fill(block[i], size_of(i), (uint64_t)i);
    }
}

static void give(void **block)
{
    for (int i = 0; i < BLOCKS; i++) {
        verify(block[i], size_of(i), (uint64_t)i, "block of a constructor");
        free(block[i]);
        block[i] = NULL;
    }
}

__attribute__((constructor(101))) static void very_early(void)
{
    take(first);
}

__attribute__((constructor)) static void at_load(void)
{
    take(second);
    give(first);
    take(first);
}

__attribute__((destructor)) static void at_unload(void)
{
    give(second);
}

__attribute__((destructor(101))) static void very_late(void)
{
    give(first);
    free(hide(malloc(100)));
}

/* Called by the program: hands out a block that outlives the library. */
void *early_block(size_t n)
{
    void *p = hide(malloc(n));
    CHECK(p != NULL, "early_block(%zu)", n);
    memset(hide(local), 1, sizeof local);
    fill(p, n, n);
    return p;
}
