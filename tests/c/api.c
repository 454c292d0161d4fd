/*
 * Proves that malloc, calloc, realloc, reallocarray and free keep their
 * contracts for every size: contents, alignment, zeroing after dirty reuse,
 * errno, and the answers to sizes that cannot be had.
 */
#include "common.h"

#define KEEP 64

/* Sizes at which behaviour may change: around powers of two and class steps. */
static size_t edge_sizes[512];
static size_t edges;

static void make_edges(size_t limit)
{
    for (size_t n = 1; n <= limit; n *= 2) {
        for (size_t eighth = 0; eighth < 8; eighth++) {
            size_t at = n + n / 8 * eighth;
            for (int d = -1; d <= 1; d++) {
                size_t s = at + (size_t)d;
                if (s > 0 && s <= limit && edges < sizeof edge_sizes / sizeof *edge_sizes
                    && (eighth == 0 || n <= 65536))
                    edge_sizes[edges++] = s;
            }
        }
    }
}

static void check_alignment(void *p, size_t n)
{
    uintptr_t a = (uintptr_t)p;
    CHECK(a % (n >= 16 ? 16 : 8) == 0, "malloc(%zu) is misaligned: %p", n, p);
    if (on_uslub() && n != 0 && (n & (n - 1)) == 0 && n <= 4096)
        CHECK(a % n == 0, "malloc(%zu) is not naturally aligned: %p", n, p);
}

/* Takes n bytes, fills all that is usable, puts the block in a ring of KEEP. */
static void one_size(size_t n, int whole)
{
    static struct { unsigned char *p; size_t n; uint64_t seed; } ring[KEEP];
    static unsigned at;
    unsigned i = at++ % KEEP;
    if (ring[i].p != NULL) {
        verify(ring[i].p, ring[i].n, ring[i].seed, "ring");
        free(ring[i].p);
    }
    errno = 4711;
    ring[i].p = hide(malloc(n));
    CHECK(ring[i].p != NULL, "malloc(%zu)", n);
    CHECK(errno == 4711, "malloc(%zu) changed errno", n);
    check_alignment(ring[i].p, n);
    size_t usable = malloc_usable_size(ring[i].p);
    CHECK(usable >= n, "malloc(%zu) has usable size %zu", n, usable);
    CHECK(n < 64 || usable <= n * 2 + 65536, "malloc(%zu) wastes: usable size %zu", n, usable);
    ring[i].seed = mix((uintptr_t)ring[i].p) + at;
    ring[i].n = whole ? usable : 64;
    fill(ring[i].p, ring[i].n, ring[i].seed);
    if (!whole) /* only sizes of 4096 and more come here */
        ring[i].p[usable - 1] = 0x77;
}

static void every_size(void)
{
    for (size_t n = 0; n <= 70000; n++)
        one_size(n, n < 4096 || n % 16 == 0);
    for (size_t n = 1; n <= 64 * MIB; n *= 2)
        for (int d = -1; d <= 1; d++)
            one_size(n + (size_t)d, 1);
    for (int i = 0; i < KEEP; i++)
        one_size(1, 1);
}

static void zero_size(void)
{
    void *p[100];
    for (int i = 0; i < 100; i++) {
        p[i] = hide(i % 2 ? malloc(opaque(0)) : calloc(opaque(0), opaque(8)));
        CHECK(p[i] != NULL, "a request for no bytes gave NULL");
        for (int k = 0; k < i; k++)
            CHECK(p[i] != p[k], "two live blocks of no bytes share %p", p[i]);
    }
    for (int i = 0; i < 100; i++)
        free(p[i]);
    free(NULL);
}

static void refused(void *p, const char *what)
{
    CHECK(p == NULL, "%s gave %p instead of NULL", what, p);
    CHECK(errno == ENOMEM, "%s left errno %d, not ENOMEM", what, errno);
    errno = 0;
}

static void impossible_sizes(void)
{
    static const size_t huge[] = {PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX, SIZE_MAX - 1,
                                  SIZE_MAX - 4095, SIZE_MAX - 65536, (size_t)PTRDIFF_MAX - 1,
                                  (size_t)PTRDIFF_MAX - 4096, (size_t)1 << 62, (size_t)1 << 56};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        errno = 0;
        refused(hide(malloc(opaque(huge[i]))), "malloc of an impossible size");
        refused(hide(calloc(1, opaque(huge[i]))), "calloc of an impossible size");
        refused(hide(calloc(opaque(huge[i]), 1)), "calloc of an impossible count");
        refused(hide(realloc(NULL, opaque(huge[i]))), "realloc(NULL) of an impossible size");
    }
    static const size_t product[][2] = {{SIZE_MAX, 2}, {2, SIZE_MAX}, {SIZE_MAX, SIZE_MAX},
        {(size_t)1 << 32, (size_t)1 << 32}, {((size_t)1 << 63) + 1, 2},
        {SIZE_MAX / 7 + 1, 7}, {SIZE_MAX / 4096 + 1, 4096}};
    for (size_t i = 0; i < sizeof product / sizeof *product; i++) {
        size_t a = opaque(product[i][0]), b = opaque(product[i][1]);
        errno = 0;
        refused(hide(calloc(a, b)), "calloc that overflows");
        refused(hide(reallocarray(NULL, a, b)), "reallocarray(NULL) that overflows");
        for (size_t n = 8; n <= 8 * MIB; n *= 32) {
            void *p = hide(malloc(n));
            fill(p, n, n);
            errno = 0;
            refused(hide(reallocarray(hide(p), a, b)), "reallocarray that overflows");
            refused(hide(realloc(hide(p), opaque(PTRDIFF_MAX))), "realloc to an impossible size");
            refused(hide(realloc(hide(p), opaque(SIZE_MAX))), "realloc to an impossible size");
            verify(p, n, n, "block after a refused realloc");
            free(p);
        }
    }
}

static void calloc_zeroes(void)
{
    static void *block[4096];
    for (size_t e = 0; e < edges; e++) {
        size_t n = edge_sizes[e];
        size_t count = n <= 256 ? 2000 : n <= 65536 ? 40 : n <= MIB ? 4 : 2;
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < count; i++) {
                block[i] = hide(calloc(n % 2 ? 1 : 2, n % 2 ? n : n / 2));
                CHECK(block[i] != NULL, "calloc of %zu", n);
                CHECK(all_zero(block[i], n), "calloc of %zu is not zero", n);
                memset(block[i], 0xa5, malloc_usable_size(block[i]));
            }
            for (size_t i = 0; i < count; i++)
                free(block[i]);
            /* the same memory, dirtied by plain malloc of a near size */
            for (size_t i = 0; i < count; i++) {
                block[i] = hide(malloc(n));
                memset(block[i], 0x5a, malloc_usable_size(block[i]));
            }
            for (size_t i = count; i-- > 0;)
                free(block[i]);
        }
    }
}

static void resize(void **p, size_t *old, size_t n)
{
    uint64_t seed = *old * 31 + 7;
    fill(*p, *old, seed);
    errno = 4711;
    void *q = hide(n % 3 ? realloc(*p, n) : reallocarray(*p, n / 3, 3));
    CHECK(q != NULL, "realloc from %zu to %zu", *old, n);
    CHECK(errno == 4711, "realloc from %zu to %zu changed errno", *old, n);
    verify(q, *old < n ? *old : n, seed, "block after realloc");
    CHECK(malloc_usable_size(q) >= n, "realloc to %zu is too small", n);
    CHECK((uintptr_t)q % (n >= 16 ? 16 : 8) == 0, "realloc to %zu is misaligned: %p", n, q);
    *p = q;
    *old = n;
}

static void realloc_keeps(void)
{
    size_t have = 1;
    void *p = hide(realloc(NULL, have));
    CHECK(p != NULL, "realloc(NULL, 1)");
    for (size_t e = 0; e < edges; e++)
        resize(&p, &have, edge_sizes[e]);
    for (size_t e = edges; e-- > 0;)
        resize(&p, &have, edge_sizes[e]);
    /* jumps of all widths, both ways */
    uint64_t random = 42;
    for (int i = 0; i < 4000; i++)
        resize(&p, &have, log_size(&random, i % 50 ? 18 : 24));
    p = hide(realloc(p, opaque(0)));
    CHECK(p == NULL, "realloc(p, 0) gave %p; glibc frees and gives NULL", p);
}

/* Each page of a block that grows to 512 MiB carries its own number. */
static void realloc_huge(void)
{
    size_t pages = 64, stamped = 0;
    uint64_t *p = hide(malloc(pages * 4096));
    for (;;) {
        for (; stamped < pages; stamped++)
            p[stamped * 512 + stamped % 512] = mix(stamped);
        if (pages * 4096 >= 512 * MIB)
            break;
        pages = pages * 4096 < 400 * MIB ? pages + pages / 2 : 512 * MIB / 4096;
        p = hide(realloc(p, pages * 4096));
        CHECK(p != NULL, "realloc to %zu pages", pages);
        for (size_t i = 0; i < stamped; i++)
            CHECK(p[i * 512 + i % 512] == mix(i), "page %zu of %zu lost its number", i, pages);
    }
    while (pages > 16) {
        pages = pages * 3 / 5;
        p = hide(realloc(p, pages * 4096));
        CHECK(p != NULL, "realloc down to %zu pages", pages);
        for (size_t i = 0; i < pages; i++)
            CHECK(p[i * 512 + i % 512] == mix(i), "page %zu of %zu lost its number", i, pages);
    }
    free(p);
}

static void free_keeps_errno(void)
{
    for (size_t n = 1; n <= 64 * MIB; n *= 4) {
        void *p[8];
        for (int i = 0; i < 8; i++) {
            p[i] = hide(malloc(n));
            *(char *)p[i] = 1;
        }
        for (int i = 0; i < 8; i++) {
            errno = 4711;
            free(p[i]);
            CHECK(errno == 4711, "free of %zu bytes changed errno to %d", n, errno);
        }
    }
}

int main(void)
{
    start();
    make_edges(32 * MIB);
    every_size();
    zero_size();
    impossible_sizes();
    calloc_zeroes();
    realloc_keeps();
    realloc_huge();
    free_keeps_errno();
    printf("api: ok, validate %s\n", validate());
    return 0;
}
