/*
 * Proves that memory which goes back to the system takes no live block along,
 * whatever the length of the system's pages: blocks of all sizes, most of them
 * below a page, are freed in stretches with a few left between, purged, and
 * every block that stays is verified. Whole-page blocks and mapped ones follow
 * the system's page size.
 *
 * By hand:  ./purge [ROUNDS (30) [BLOCKS (20000)]]
 */
#include "common.h"

#define MOST 20000

static struct { unsigned char *p; size_t n; uint64_t seed; } block[MOST];
static int blocks;
static uint64_t state = 88172645463325252ull;

static size_t below(size_t n)
{
    return next_random(&state) % n;
}

static void put(int i)
{
    size_t n = 1 + below(below(8) ? 600 : 30000);
    if (below(2000) == 0)
        n = MIB / 4 + below(MIB);
    block[i].p = hide(malloc(n));
    CHECK(block[i].p != NULL, "malloc(%zu)", n);
    block[i].n = n;
    block[i].seed = mix((uintptr_t)block[i].p ^ state);
    fill(block[i].p, n, block[i].seed);
}

static void look(int i, const char *when)
{
    verify(block[i].p, block[i].n, block[i].seed, when);
}

static void drop(int i)
{
    look(i, "block that is freed");
    free(block[i].p);
    block[i].p = NULL;
}

static void purge_round(void)
{
    int from = (int)below((size_t)blocks), count = (int)below((size_t)blocks / 2);
    for (int k = 0; k < count; k++) {
        int i = (from + k) % blocks;
        if (block[i].p != NULL && below(10) != 0)
            drop(i);
    }
    malloc_trim(0);
    sleep_ms(3);
    for (int k = 0; k < 100; k++)
        free(hide(malloc(100000)));
    for (int i = 0; i < blocks; i++) {
        if (block[i].p != NULL)
            look(i, "block that stays");
        else
            put(i);
    }
}

/* Zeroed blocks come from memory that went back, or did not. */
static void zeroed(void)
{
    for (int k = 0; k < 400; k++) {
        size_t n = 1 + below(k % 8 == 0 ? MIB : 40000);
        unsigned char *p = hide(calloc(1, n));
        CHECK(p != NULL && all_zero(p, n), "calloc of %zu bytes is not zero", n);
        memset(p, 0xff, malloc_usable_size(p));
        free(p);
        if (k % 40 == 0)
            malloc_trim(0);
    }
}

/* All of a mapped block may be used, to the end of its last page. */
static void whole_pages(size_t page)
{
    for (size_t n = 1; n < 3 * MIB; n = n * 3 + 1) {
        unsigned char *v = hide(valloc(n)), *p = hide(pvalloc(n));
        CHECK((uintptr_t)v % page == 0 && (uintptr_t)p % page == 0, "%p and %p, pages of %zu",
              (void *)v, (void *)p, page);
        size_t whole = (n + page - 1) / page * page;
        CHECK(malloc_usable_size(p) >= whole, "pvalloc(%zu) has %zu bytes", n,
              malloc_usable_size(p));
        memset(p, 0x11, whole);
        memset(v, 0x22, n);
        free(v);
        free(p);
    }
    for (size_t n = MIB / 2; n < 2 * MIB; n += 77777) {
        unsigned char *p = hide(malloc(n));
        CHECK(p != NULL, "malloc(%zu)", n);
        size_t usable = malloc_usable_size(p);
        if (on_uslub())
            CHECK(usable % page == 0, "%zu bytes of a mapping of pages of %zu", usable, page);
        fill(p, usable, n);
        p = hide(realloc(p, 2 * usable + 1));
        CHECK(p != NULL, "realloc to %zu", 2 * usable + 1);
        verify(p, usable, n, "block that grew");
        free(p);
    }
}

int main(int argc, char **argv)
{
    start();
    int rounds = argc > 1 ? atoi(argv[1]) : 30;
    blocks = argc > 2 ? atoi(argv[2]) : MOST;
    CHECK(blocks >= 2 && blocks <= MOST, "2 to %d blocks", MOST);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < blocks; i++)
        put(i);
    for (int round = 0; round < rounds; round++)
        purge_round();
    zeroed();
    whole_pages(page);
    for (int i = 0; i < blocks; i++)
        drop(i);
    malloc_trim(0);
    printf("purge: ok, pages of %zu, validate %s\n", page, validate());
    return 0;
}
