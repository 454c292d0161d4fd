/*
 * Stacks that are hard to walk, for the reports of slab_debug: built without frame pointers. The
 * first argument names the stack. At its end an object is freed twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone))
#define OPAQUE __asm__ volatile("" ::: "memory")

static volatile size_t bytes = 40;

NOINLINE static void twice(void)
{
    void *volatile p = malloc(bytes);
    free(p);
    free(p);
    OPAQUE;
}

/* A frame that is larger than a search goes. */
NOINLINE static void large(void)
{
    volatile char frame[64 << 10];
    frame[0] = 1;
    twice();
    frame[1] = frame[0];
}

NOINLINE static void leaves_words(int depth)
{
    volatile char frame[64];
    frame[0] = 1;
    if (depth > 0)
        leaves_words(depth - 1);
    OPAQUE;
    frame[1] = frame[0];
}

/* A frame full of what earlier calls left behind. */
NOINLINE static void stale_inner(void)
{
    volatile char frame[1500];
    OPAQUE;
    twice();
    OPAQUE;
    (void)frame[7];
}

NOINLINE static void stale(void)
{
    leaves_words(20);
    stale_inner();
    OPAQUE;
}

/* A frame whose size only the frame's own pointer knows. */
NOINLINE static void dynamic(void)
{
    volatile char *frame = __builtin_alloca(bytes * 100);
    frame[0] = 1;
    twice();
    frame[1] = frame[0];
}

static int compare(const void *a, const void *b)
{
    static int done;
    if (!done++)
        twice();
    return *(const int *)a - *(const int *)b;
}

/* Through a function of the C library. */
NOINLINE static void callback(void)
{
    int numbers[] = { 3, 1, 2 };
    qsort(numbers, 3, sizeof numbers[0], compare);
    OPAQUE;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*way)(void);
    } ways[] = { { "large", large }, { "stale", stale }, { "dynamic", dynamic }, { "callback", callback } };
    for (size_t i = 0; argc > 1 && i < sizeof ways / sizeof ways[0]; i++)
        if (!strcmp(argv[1], ways[i].name)) {
            ways[i].way();
            puts("went on");
            return 0;
        }
    return 2;
}
