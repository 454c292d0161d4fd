/*
 * Proves that posix_memalign, aligned_alloc, memalign, valloc and pvalloc give
 * aligned blocks that may be written up to malloc_usable_size, resized and
 * freed, and that wrong alignments are refused in the right way.
 */
#include "common.h"

static const size_t sizes[] = {0,    1,    2,     7,     8,     9,     15,    16,     17,    24,
                               31,   32,   33,    48,    63,    64,    65,    100,    127,   128,
                               129,  192,  255,   256,   257,   500,   511,   512,    513,   1000,
                               1023, 1024, 1025,  1500,  2047,  2048,  2049,  3000,   4095,  4096,
                               4097, 6000, 8191,  8192,  8193,  10000, 16384, 16385,  20000, 32768,
                               32769, 50000, 65536, 65537, 100000, 131072, 200000, 262145, 1048576,
                               1048577, 3000000, 4194304, 4194305, 9000000};
#define SIZES (sizeof sizes / sizeof *sizes)
#define KEEP 8

static unsigned long checked;

/* Fills the block; the last KEEP blocks stay live so that overlaps show. */
static void use(void *p, size_t alignment, size_t n, const char *what)
{
    static struct { void *p; size_t n; uint64_t seed; } ring[KEEP];
    unsigned i = checked++ % KEEP;
    CHECK(p != NULL, "%s(%zu, %zu) gave NULL", what, alignment, n);
    CHECK((uintptr_t)p % alignment == 0, "%s(%zu, %zu) gave %p", what, alignment, n, p);
    size_t usable = malloc_usable_size(p);
    CHECK(usable >= n, "%s(%zu, %zu) has usable size %zu", what, alignment, n, usable);
    if (ring[i].p != NULL) {
        verify(ring[i].p, ring[i].n, ring[i].seed, "aligned block");
        if (checked % 5 == 0) { /* an aligned block is a block like any other */
            size_t m = ring[i].n / 2 + checked % 3 * 4000 + 1;
            void *q = hide(realloc(ring[i].p, m));
            CHECK(q != NULL, "realloc of an aligned block to %zu", m);
            verify(q, m < ring[i].n ? m : ring[i].n, ring[i].seed, "aligned block after realloc");
            free(q);
        } else {
            free(ring[i].p);
        }
    }
    ring[i].p = p;
    ring[i].n = usable;
    ring[i].seed = mix((uintptr_t)p) + checked;
    fill(p, usable, ring[i].seed);
}

static void every_alignment(void)
{
    for (size_t a = sizeof(void *); a <= 4 * MIB; a *= 2) {
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s];
            if (n > 2 * MIB && a > 64 && a < MIB)
                continue; /* enough of the same */
            void *p = (void *)(uintptr_t)0x5a5a;
            errno = 4711;
            int result = posix_memalign(&p, opaque(a), n);
            CHECK(result == 0, "posix_memalign(%zu, %zu) returned %d", a, n, result);
            CHECK(errno == 4711, "posix_memalign(%zu, %zu) changed errno", a, n);
            use(hide(p), a, n, "posix_memalign");
            errno = 4711;
            use(hide(aligned_alloc(opaque(a), n)), a, n, "aligned_alloc");
            use(hide(memalign(opaque(a), n)), a, n, "memalign");
            CHECK(errno == 4711, "memalign(%zu, %zu) changed errno", a, n);
        }
    }
    for (size_t a = 1; a <= 8; a *= 2)
        for (size_t s = 0; s < SIZES; s++)
            use(hide(memalign(opaque(a), sizes[s])), a, sizes[s], "memalign");
}

static void whole_pages(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t s = 0; s < SIZES; s++) {
        use(hide(valloc(sizes[s])), page, sizes[s], "valloc");
        size_t rounded = (sizes[s] + page - 1) / page * page;
        use(hide(pvalloc(sizes[s])), page, rounded, "pvalloc");
    }
}

static void wrong_alignments(void)
{
    static const size_t wrong[] = {0, 1, 2, 3, 4, 5, 7, 9, 12, 24, 48, 100, 4095, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *mark = (void *)(uintptr_t)0x5a5a5a50, *p = mark;
        errno = 4711;
        int result = posix_memalign(&p, opaque(wrong[i]), 100);
        CHECK(result == EINVAL, "posix_memalign with alignment %zu returned %d", wrong[i], result);
        CHECK(errno == 4711, "posix_memalign with alignment %zu changed errno", wrong[i]);
        CHECK(p == mark, "posix_memalign with alignment %zu wrote the pointer", wrong[i]);
    }
    /* memalign may round such an alignment up (glibc does) or refuse it */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t up = 1;
        while (up < wrong[i] && up != 0)
            up *= 2;
        errno = 0;
        void *p = hide(memalign(opaque(wrong[i]), 100));
        if (p == NULL)
            CHECK(errno == EINVAL || errno == ENOMEM, "memalign(%zu) left errno", wrong[i]);
        else
            use(p, up == 0 ? 1 : up, 100, "memalign");
    }
}

static void impossible(void)
{
    static const size_t huge[] = {PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX, SIZE_MAX - 15,
                                  SIZE_MAX - 4096, (size_t)1 << 62};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        for (size_t a = 8; a <= 4 * MIB; a *= 4) {
            void *mark = (void *)(uintptr_t)0x5a5a5a50, *p = mark;
            int result = posix_memalign(&p, opaque(a), opaque(huge[i]));
            CHECK(result == ENOMEM, "posix_memalign(%zu, %zu) returned %d", a, huge[i], result);
            CHECK(p == mark, "a failing posix_memalign wrote the pointer");
            errno = 0;
            CHECK(hide(memalign(opaque(a), opaque(huge[i]))) == NULL, "memalign(%zu, %zu)", a,
                  huge[i]);
            CHECK(errno == ENOMEM, "memalign(%zu, %zu) left errno %d", a, huge[i], errno);
            errno = 0;
            CHECK(hide(aligned_alloc(opaque(a), opaque(huge[i]))) == NULL, "aligned_alloc(%zu, %zu)",
                  a, huge[i]);
            CHECK(errno == ENOMEM, "aligned_alloc(%zu, %zu) left errno %d", a, huge[i], errno);
        }
        errno = 0;
        CHECK(hide(valloc(opaque(huge[i]))) == NULL && errno == ENOMEM, "valloc(%zu)", huge[i]);
        errno = 0;
        CHECK(hide(pvalloc(opaque(huge[i]))) == NULL && errno == ENOMEM, "pvalloc(%zu)", huge[i]);
    }
    /* an alignment beyond the address space */
    for (int bit = 48; bit < 64; bit++)
        CHECK(hide(memalign(opaque((size_t)1 << bit), 1)) == NULL, "memalign(1 << %d)", bit);
}

int main(void)
{
    start();
    every_alignment();
    whole_pages();
    wrong_alignments();
    impossible();
    printf("align: ok, %lu blocks, validate %s\n", checked, validate());
    return 0;
}
