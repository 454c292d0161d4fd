/*
 * Thirty misuses, after the ideas of mimalloc-bench's security programs and of
 * a hardened allocator's tests. argv[1] names one. The program says which
 * pointer it misuses, does it, and says how far it came:
 *
 *     survived the call       the wrong call, or the free of a damaged block
 *     survived the next use   1,000 blocks of that size
 *     survived the flush      100,000 blocks of that size, and malloc_trim(0)
 *
 * What must end where is in docs/security.md, and the driver compares. Without
 * an argument the program lists the names. A program that comes to its end
 * exits 0: the allocator has not seen the misuse.
 */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#define MANY 100000
static void *held[MANY];
static size_t churn_size = 64;

/* Called through these, so that the compiler does not see the misuse. */
static void *(*volatile take)(size_t) = malloc;
static void (*volatile give)(void *) = free;
static void *(*volatile resize)(void *, size_t) = realloc;
static size_t (*volatile usable)(void *) = malloc_usable_size;
static void (*give_sized)(void *, size_t);
static void (*give_aligned)(void *, size_t, size_t);

/* The pointer that is wrong, printed so that the reader can look for it. */
static void *wrong(void *p)
{
    say("misuse: pointer %lx", (unsigned long)(uintptr_t)p);
    return hide(p);
}

static char *block(size_t n)
{
    char *p = hide(take(n));
    CHECK(p != NULL, "malloc(%zu)", n);
    memset(p, 0x11, n);
    churn_size = n ? n : 1;
    return p;
}

static void churn(int count)
{
    for (int i = 0; i < count; i++) {
        held[i] = hide(take(churn_size));
        CHECK(held[i] != NULL, "malloc(%zu)", churn_size);
    }
    for (int i = 0; i < count; i++)
        give(held[i]);
}

/* Double frees. */
static void double_after(size_t n, int others)
{
    char *p = block(n);
    for (int i = 0; i < others; i++)
        held[i] = block(n);
    give(p);
    for (int i = 0; i < others; i++)
        give(held[i]);
    give(wrong(p));
}

static void double_small(void) { double_after(64, 0); }
static void double_small_between(void) { double_after(24, 1); }
static void double_small_delayed(void) { double_after(64, 40); }
static void double_large(void) { double_after(100 * 1024, 0); }
static void double_large_delayed(void) { double_after(100 * 1024, 20); }
static void double_huge(void) { double_after(8 * MIB, 0); }

static void double_small_interleaved(void)
{
    char *p = block(128), *q = block(128);
    give(p);
    char *r = block(700);
    give(q);
    give(r);
    char *s = block(48);
    churn_size = 128;
    give(wrong(p));
    give(s);
}

/* Pointers that were never given out. */
static void invalid_unprotected(void)
{
    char *p = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    give(wrong(p + 4096));
}

static void invalid_protected(void)
{
    char *p = mmap(NULL, 16384, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    give(wrong(p + 4096));
}

static void invalid_stack(void)
{
    char local[256];
    memset(local, 1, sizeof local);
    give(wrong(hide(local + 64)));
}

static void invalid_far(void)
{
    uintptr_t p = (uintptr_t)block(64);
    give(wrong((void *)((p | (64 * MIB - 1)) + 1 + 65536)));
}

/* Pointers into a block. */
static void unaligned_small(void) { give(wrong(block(64) + 1)); }
static void unaligned_large(void) { give(wrong(block(200 * 1024) + 1)); }
static void interior_small(void) { give(wrong(block(200) + 16)); }
static void interior_huge(void) { give(wrong(block(8 * MIB) + 4096)); }

/* Sizes that are not the block's. */
static void sized_smaller(void) { give_sized(wrong(block(256)), 8); }
static void sized_larger(void) { give_sized(wrong(block(16)), 128); }
static void aligned_sized_wrong(void) { give_aligned(wrong(block(48)), 16, 1000); }

/* Calls that need a live block. */
static void realloc_freed(void)
{
    char *p = block(64);
    give(p);
    held[0] = resize(wrong(p), 200);
}

static void realloc_interior(void) { held[0] = resize(wrong(block(200) + 32), 400); }

static void usable_freed(void)
{
    char *p = block(64);
    give(p);
    usable(wrong(p));
}

static void usable_unaligned(void) { usable(wrong(block(64) + 1)); }

/* Writes over the end. The block is freed afterwards. */
static void overflow(size_t n, size_t bytes)
{
    char *p = block(n);
    size_t end = usable(p);
    wrong(p);
    memset(hide(p + end), 0x22, bytes);
    give(p);
}

static void overflow_small_1(void) { overflow(8, 1); }
static void overflow_small_8(void) { overflow(8, 8); }
static void overflow_large_1(void) { overflow(200 * 1024, 1); }
static void overflow_large_8(void) { overflow(200 * 1024, 8); }

/* Writes into a freed block. */
static void write_freed(size_t n, int reuse)
{
    char *p = block(n);
    give(p);
    wrong(p);
    p[n / 2 + 9] ^= 0x55;
    if (reuse)
        churn(1000);
}

static void write_freed_small(void) { write_freed(128, 0); }
static void write_freed_small_reuse(void) { write_freed(128, 1); }
static void write_freed_large(void) { write_freed(200 * 1024, 0); }

/* A block of no bytes. */
static void read_zero_size(void)
{
    volatile char *p = wrong(hide(take(0)));
    churn_size = 1;
    (void)*p;
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"double-small", double_small},
    {"double-small-between", double_small_between},
    {"double-small-delayed", double_small_delayed},
    {"double-small-interleaved", double_small_interleaved},
    {"double-large", double_large},
    {"double-large-delayed", double_large_delayed},
    {"double-huge", double_huge},
    {"invalid-unprotected", invalid_unprotected},
    {"invalid-protected", invalid_protected},
    {"invalid-stack", invalid_stack},
    {"invalid-far", invalid_far},
    {"unaligned-small", unaligned_small},
    {"unaligned-large", unaligned_large},
    {"interior-small", interior_small},
    {"interior-huge", interior_huge},
    {"sized-smaller", sized_smaller},
    {"sized-larger", sized_larger},
    {"aligned-sized-wrong", aligned_sized_wrong},
    {"realloc-freed", realloc_freed},
    {"realloc-interior", realloc_interior},
    {"usable-freed", usable_freed},
    {"usable-unaligned", usable_unaligned},
    {"overflow-small-1", overflow_small_1},
    {"overflow-small-8", overflow_small_8},
    {"overflow-large-1", overflow_large_1},
    {"overflow-large-8", overflow_large_8},
    {"write-freed-small", write_freed_small},
    {"write-freed-small-reuse", write_freed_small_reuse},
    {"write-freed-large", write_freed_large},
    {"read-zero-size", read_zero_size},
};

static void *needed(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    CHECK(address != NULL, "%s is missing", name);
    return address;
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
    start();
    stay_here();
    alarm(slowed(60));
    if (argc < 2) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            puts(cases[i].name);
        return 0;
    }
    void *sized = needed("free_sized"), *aligned = needed("free_aligned_sized");
    memcpy(&give_sized, &sized, sizeof sized);
    memcpy(&give_aligned, &aligned, sizeof aligned);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        cases[i].run();
        int count = churn_size <= 4096 ? 1000 : 20;
        say("misuse: survived the call");
        churn(count);
        say("misuse: survived the next use");
        churn(count == 1000 ? MANY : 200);
        malloc_trim(0);
        say("misuse: survived the flush");
        return 0;
    }
    FAIL("unknown case %s", argv[1]);
}
