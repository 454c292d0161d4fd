/*
 * Proves: uslub_slab_use says how full an object's slab is; what is no object has no slab.
 */
#include "check.h"

#define MOST 64

int main(void)
{
    unsigned used = 7, slots = 7;
    FAILS(uslub_slab_use(&used, &used, &slots) == 0, EINVAL);
    struct uslub_cache *cache = cache_of("used", 200);
    struct uslub_cache_stats stats;
    CHECK(uslub_cache_get_stats(cache, &stats) == 0);
    size_t all = stats.objects_per_slab, bytes = 4096 * stats.pages_per_slab;
    CHECK(all > 4 && all <= MOST);

    /* One slab, full: its objects come from several allocations. */
    void *held[MOST * 100];
    size_t n = MOST * 100;
    for (size_t i = 0; i < n; i++)
        CHECK((held[i] = uslub_cache_alloc(cache, K)));
    LEAVES_ERRNO(CHECK(uslub_slab_use(held[0], &used, &slots) == 0));
    CHECK(slots == all && used == all);

    /* All objects but those of held[0]'s slab, and of that one all but three, are freed. */
    size_t slab = (size_t)held[0] / bytes, kept = 0;
    void *three[3];
    for (size_t i = 0; i < n; i++) {
        if ((size_t)held[i] / bytes == slab && kept < 3)
            three[kept++] = held[i];
        else
            uslub_cache_free(cache, held[i]);
    }
    CHECK(kept == 3);
    uslub_cache_shrink(cache);
    for (size_t i = 0; i < 3; i++) {
        CHECK(uslub_slab_use(three[i], &used, &slots) == 0);
        CHECK(used == 3 && slots == all);
        uslub_cache_free(cache, three[i]);
    }

    void *large = uslub_kmalloc(20000, K);
    CHECK(large && uslub_slab_use(large, &used, &slots) == 0);
    CHECK(used == 1 && slots == 1);
    uslub_kfree(large);

    FAILS(uslub_slab_use(NULL, &used, &slots) == 0, EINVAL);
    FAILS(uslub_slab_use(&used, &used, &slots) == 0, EINVAL);
    FAILS(uslub_slab_use(three, NULL, &slots) == 0, EINVAL);
    FAILS(uslub_slab_use(three, &used, NULL) == 0, EINVAL);
    puts("all holds");
    return 0;
}
