/*
 * Proves: a cache has the tuning that it was created with, says so, and behaves so; counters are there by CPU too.
 */
#include "check.h"

static uint32_t tuned(const struct uslub_cache *cache, const char *name)
{
    uint32_t value = 12345;
    CHECK(uslub_cache_tuning(cache, name, &value) == 0);
    return value;
}

/* Updates of slabs that free 12 objects of one slab, without sheaves in between. */
static uint64_t updates(const char *tuning)
{
    struct uslub_cache_args args = { .size = 256, .tuning = tuning };
    struct uslub_cache *cache = uslub_cache_create("updates", &args);
    void *objects[12];
    CHECK(cache && uslub_cache_alloc_bulk(cache, USLUB_GFP_KERNEL, 12, objects));
    uslub_cache_free_bulk(cache, 12, objects);
    CHECK(uslub_cache_shrink(cache) == 0);
    uint64_t count, by_cpu = 0, sum;
    CHECK(uslub_cache_stat(cache, "free_detached", &count) == 0);
    for (size_t cpu = 0; cpu < 4096; cpu++) {
        CHECK(uslub_cache_stat_on(cache, "sheaf_flush", cpu, &sum) == 0);
        by_cpu += sum;
    }
    CHECK(uslub_cache_stat(cache, "sheaf_flush", &sum) == 0 && sum == by_cpu);
    CHECK(uslub_cache_stat_on(cache, "no_such", 0, &sum) == -1 && errno == EINVAL);
    CHECK(uslub_cache_destroy(cache) == 0);
    return count;
}

int main(void)
{
    struct uslub_cache_args args = { .size = 256, .tuning = "sheaf_spill=1, look_ahead=4,,empty_reserve=1" };
    struct uslub_cache *cache = uslub_cache_create("tuned", &args);
    CHECK(cache);
    CHECK(tuned(cache, "sheaf_spill") == 1 && tuned(cache, "look_ahead") == 4);
    CHECK(tuned(cache, "empty_reserve") == 1 && tuned(cache, "freelist_deferred") == 1);
    uint32_t value;
    CHECK(uslub_cache_tuning(cache, "decay_ms", &value) == -1 && errno == EINVAL);
    CHECK(uslub_cache_tuning(cache, NULL, &value) == -1 && errno == EINVAL);
    CHECK(uslub_cache_tuning(cache, "look_ahead", NULL) == -1 && errno == EINVAL);
    CHECK(uslub_cache_destroy(cache) == 0);

    CHECK(updates("detached_freelist=0") > updates("detached_freelist=1"));
    puts("all holds");
    return 0;
}
