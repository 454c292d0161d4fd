/*
 * Does one misuse of a cache or of kmalloc, named by the first argument, and says how far it came:
 *
 *     survived the call       the wrong call, or the free of a damaged object
 *     survived the next use   1,000 objects
 *     survived the flush      20,000 objects, and the cache shrunk
 *
 * Where it must end is in docs/security.md; the driver compares. Without an argument it lists the
 * names.
 */
#define _GNU_SOURCE
#include "check.h"
#include <sched.h>

#define SIZE 64

static struct uslub_cache *cache;

static char *take(void)
{
    char *object = uslub_cache_alloc(cache, K);
    CHECK(object);
    memset(object, 0x11, SIZE);
    return object;
}

/* Volatile, so that the compiler does not see the misuse. */
static void *volatile hidden;

static void give(void *object)
{
    hidden = object;
    uslub_cache_free(cache, hidden);
}

/* Frees an object, then others, then the object again. */
static void double_after(int others)
{
    char *object = take(), *more[40];
    for (int i = 0; i < others; i++)
        more[i] = take();
    give(object);
    for (int i = 0; i < others; i++)
        give(more[i]);
    give(object);
}

/* Writes bytes at a distance from an object's start, and frees the object. */
static void write_outside(long at, size_t bytes)
{
    char *object = take();
    hidden = object + at;
    memset(hidden, 0x22, bytes);
    give(object);
}

static void twice(void) { double_after(0); }
static void twice_between(void) { double_after(1); }
static void twice_delayed(void) { double_after(40); }
static void interior(void) { give(take() + 16); }
static void unaligned(void) { give(take() + 1); }
static void over_1(void) { write_outside(SIZE, 1); }
static void over_8(void) { write_outside(SIZE, 8); }

static void of_stack(void)
{
    char local[SIZE];
    memset(local, 1, sizeof local);
    give(local);
}

static void of_another_cache(void)
{
    struct uslub_cache_args args = { .size = SIZE };
    struct uslub_cache *other = uslub_cache_create("others", &args);
    CHECK(other);
    give(uslub_cache_alloc(other, K));
}

static void before_1(void)
{
    char *more[3] = { take(), take(), take() };
    write_outside(-1, 1);
    for (int i = 0; i < 3; i++)
        give(more[i]);
}

static void write_freed(void)
{
    char *object = take();
    give(object);
    hidden = object;
    *((char *)hidden + 13) = 0x55;
}

static void large_twice(void)
{
    hidden = uslub_kmalloc(100 * 1024, K);
    CHECK(hidden);
    uslub_kfree(hidden);
    uslub_kfree(hidden);
}

static void small_twice(void)
{
    hidden = uslub_kmalloc(SIZE, K);
    CHECK(hidden);
    memset(hidden, 0x11, SIZE);
    uslub_kfree(hidden);
    uslub_kfree(hidden);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    { "double", twice },
    { "double-between", twice_between },
    { "double-delayed", twice_delayed },
    { "interior", interior },
    { "unaligned", unaligned },
    { "stack", of_stack },
    { "other-cache", of_another_cache },
    { "over-1", over_1 },
    { "over-8", over_8 },
    { "before-1", before_1 },
    { "write-freed", write_freed },
    { "double-large", large_twice },
    { "kmalloc-double", small_twice },
};

static void churn(int count)
{
    static char *held[20000];
    for (int i = 0; i < count; i++)
        held[i] = take();
    for (int i = 0; i < count; i++)
        give(held[i]);
}

/* Keeps the process on this CPU: a double free is seen at once only where the first one went. */
static void stay_here(void)
{
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof here, &here);
}

int main(int argc, char **argv)
{
    stay_here();
    const size_t nr = sizeof cases / sizeof *cases;
    struct uslub_cache_args args = { .size = SIZE };
    if (argc < 2) {
        for (size_t i = 0; i < nr; i++)
            puts(cases[i].name);
        return 0;
    }
    cache = uslub_cache_create("misused", &args);
    CHECK(cache);
    for (size_t i = 0; i < nr; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].run();
        fputs("survived the call\n", stderr);
        churn(1000);
        fputs("survived the next use\n", stderr);
        churn(20000);
        uslub_cache_shrink(cache);
        fputs("survived the flush\n", stderr);
        return 0;
    }
    CHECK(!"a known case");
}
