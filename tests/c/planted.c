/*
 * A program with one bug, for the reports of slab_debug. The first argument names the bug. The
 * program prints the address of the object, and "went on" if it reached its end.
 */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not known to the compiler, so that it does not drop a write. */
static volatile size_t bytes = 40;

static char *object(void)
{
    char *p = malloc(bytes);
    printf("object %p\n", (void *)p);
    fflush(stdout);
    return p;
}

__attribute__((noinline)) static void frees(void *p)
{
    free(p);
    __asm__ volatile("" ::: "memory");
}

static void behind(void)
{
    char *p = object();
    *(volatile char *)(p + malloc_usable_size(p)) = 0x12;
    frees(p);
}

static void before(void)
{
    char *p = object();
    *(volatile char *)(p - 1) = 0x12;
    frees(p);
}

static void asked(void)
{
    char *p = object();
    *(volatile char *)(p + bytes) = 0x12;
    frees(p);
}

static void after_free(void)
{
    char *p = object();
    frees(p);
    *(volatile char *)(p + 8) = 0x12;
    for (int i = 0; i < 1000; i++)
        object();
}

static void twice(void)
{
    char *p = object();
    frees(p);
    frees(p);
}

static void interior(void)
{
    frees(object() + 8);
}

/* What is right in every way: sizes, moves, alignments. */
static void none(void)
{
    for (size_t n = 0; n < 3000; n += 7) {
        char *p = malloc(n);
        if (malloc_usable_size(p) < n)
            exit(3);
        memset(p, 1, malloc_usable_size(p));
        p = realloc(p, n + 20);
        memset(p, 2, n + 20);
        p = realloc(p, n / 2 + 1);
        char *z = calloc(n + 1, 3);
        for (size_t i = 0; i < 3 * (n + 1); i++)
            if (z[i])
                exit(4);
        void *a = aligned_alloc(64, n + 64);
        if ((uintptr_t)a % 64)
            exit(5);
        free(a);
        free(z);
        free(p);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*bug)(void);
    } bugs[] = {
        { "behind", behind }, { "before", before },     { "asked", asked }, { "after-free", after_free },
        { "twice", twice },   { "interior", interior }, { "none", none },
    };
    for (size_t i = 0; argc > 1 && i < sizeof bugs / sizeof bugs[0]; i++)
        if (!strcmp(argv[1], bugs[i].name)) {
            bugs[i].bug();
            puts("went on");
            return 0;
        }
    return 2;
}
