/*
 * Writes the table of caches, for the columns to be looked at.
 */
#include "check.h"

int main(void)
{
    struct uslub_cache *cache = cache_of("a name\twith blanks", 100);
    CHECK(uslub_cache_alloc(cache, K));
    CHECK(uslub_kmalloc(100, K));
    CHECK(uslub_cache_print_stats(cache, 1) == 0);
    return uslub_slabinfo(1);
}
