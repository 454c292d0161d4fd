/*
 * Proves that misuse ends the program: argv[1] names one wrong call. The
 * program says on stderr which pointer it misuses, does it, and then, as a
 * per-CPU cache may find out only when it is flushed, goes on with 100,000
 * allocations of that size and malloc_trim(0). By then it must have aborted
 * with a line that begins with "uslub:", holds the pointer in hexadecimal and
 * gives the reason. A program still alive exits 1.
 *
 * Without an argument it lists the names. For uslub only: glibc finds
 * some of these, others it does not survive.
 */
#include "common.h"
#include <signal.h>

#define CHURN 100000
static void *held[CHURN];
static char in_static[256] __attribute__((aligned(64)));
static size_t churn_size = 64;

/* Called through these, so that the compiler does not see the misuse. */
static void (*volatile give)(void *) = free;
static void *(*volatile resize)(void *, size_t) = realloc;

/* The pointer that is wrong, printed so that the reader can look for it. */
static void *wrong(void *p)
{
    say("misuse: pointer %lx", (unsigned long)(uintptr_t)p);
    return hide(p);
}

static void *block(size_t n)
{
    char *p = hide(malloc(n));
    CHECK(p != NULL, "malloc(%zu)", n);
    memset(p, 0x11, n < 4096 ? n : 4096);
    churn_size = n;
    return p;
}

static void twice(size_t n)
{
    void *p = block(n);
    give(p);
    give(wrong(p));
}

static void small_double(void) { twice(64); }
static void tiny_double(void) { twice(8); }
static void page_double(void) { twice(4096); }
static void large_double(void) { twice(100 * 1024); }
static void huge_double(void) { twice(8 * MIB); }

static void later(size_t n, int between)
{
    void *p = block(n);
    for (int i = 0; i < between; i++)
        held[i] = block(n);
    give(p);
    for (int i = 0; i < between; i++)
        give(held[i]);
    give(wrong(p));
}

static void small_double_later(void) { later(64, 10); }
static void small_double_much_later(void) { later(200, 5000); }
static void large_double_later(void) { later(100 * 1024, 20); }
static void huge_double_later(void) { later(8 * MIB, 3); }

static void inside(size_t n, size_t offset)
{
    char *p = block(n);
    give(wrong(p + offset));
}

static void small_interior(void) { inside(256, 64); }
static void small_misaligned(void) { inside(128, 3); }
static void page_interior(void) { inside(4096, 512); }
static void large_interior(void) { inside(100 * 1024, 8192); }
static void large_interior_near(void) { inside(100 * 1024, 16); }
static void huge_interior(void) { inside(8 * MIB, MIB); }
static void huge_interior_near(void) { inside(8 * MIB, 16); }

static void on_stack(void)
{
    char local[256];
    memset(local, 1, sizeof local);
    give(wrong(local + 64));
}

static void of_static(void) { give(wrong(in_static + 64)); }
static void of_code(void) { give(wrong((void *)(uintptr_t)&of_static)); }
static void wild_high(void) { give(wrong((void *)(uintptr_t)((1ull << 47) - 8192))); }
static void wild_low(void) { give(wrong((void *)(uintptr_t)4096)); }
static void wild_kernel(void) { give(wrong((void *)(uintptr_t)0xffff888012345670ull)); }

/* Near a live block, in pages or blocks that nobody was given. */
static void never_allocated(void)
{
    uintptr_t p = (uintptr_t)block(64);
    give(wrong((void *)((p | (64 * MIB - 1)) + 1 + 65536)));
}

static void realloc_freed_large(void)
{
    void *p = block(100 * 1024);
    give(p);
    held[0] = resize(wrong(p), 200 * 1024);
}

static void realloc_freed_huge(void)
{
    void *p = block(8 * MIB);
    give(p);
    held[0] = resize(wrong(p), 16 * MIB);
}

static void realloc_static(void) { held[0] = resize(wrong(in_static + 64), 100); }
static void realloc_huge_interior(void)
{
    char *p = block(8 * MIB);
    held[0] = resize(wrong(p + 4096), 16 * MIB);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"small-double", small_double},
    {"tiny-double", tiny_double},
    {"page-double", page_double},
    {"large-double", large_double},
    {"huge-double", huge_double},
    {"small-double-later", small_double_later},
    {"small-double-much-later", small_double_much_later},
    {"large-double-later", large_double_later},
    {"huge-double-later", huge_double_later},
    {"small-interior", small_interior},
    {"small-misaligned", small_misaligned},
    {"page-interior", page_interior},
    {"large-interior", large_interior},
    {"large-interior-near", large_interior_near},
    {"huge-interior", huge_interior},
    {"huge-interior-near", huge_interior_near},
    {"stack", on_stack},
    {"static", of_static},
    {"code", of_code},
    {"wild-high", wild_high},
    {"wild-low", wild_low},
    {"wild-kernel", wild_kernel},
    {"never-allocated", never_allocated},
    {"realloc-freed-large", realloc_freed_large},
    {"realloc-freed-huge", realloc_freed_huge},
    {"realloc-static", realloc_static},
    {"realloc-huge-interior", realloc_huge_interior},
};

int main(int argc, char **argv)
{
    start();
    alarm(slowed(30));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc < 2) {
            puts(cases[i].name);
            continue;
        }
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].run();
        int count = churn_size <= 4096 ? CHURN : 200;
        say("misuse: not seen at once");
        for (int round = 0; round < CHURN / count && round < 20; round++) {
            for (int k = 0; k < count; k++)
                held[k] = hide(malloc(churn_size));
            for (int k = 0; k < count; k++)
                free(held[k]);
        }
        malloc_trim(0);
        FAIL("%s was not seen at all", argv[1]);
    }
    CHECK(argc < 2, "unknown case %s", argv[1]);
    return 0;
}
