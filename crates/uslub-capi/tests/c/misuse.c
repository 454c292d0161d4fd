/*
 * Proves: a bug of the caller ends the process with a message. The first argument says which.
 */
#include <sys/resource.h>

#include "check.h"

static struct uslub_cache *cache;

static void *object(void)
{
    void *object = uslub_cache_alloc(cache, K);
    CHECK(object);
    return object;
}

static void destroyed_twice(void)
{
    uslub_cache_destroy(cache);
    uslub_cache_destroy(cache);
}

static void alloc_after_destroy(void)
{
    uslub_cache_destroy(cache);
    uslub_cache_alloc(cache, K);
}

static void bulk_after_destroy(void)
{
    void *objects[2];
    uslub_cache_destroy(cache);
    uslub_cache_alloc_bulk(cache, K, 2, objects);
}

static void prefill_after_destroy(void)
{
    uslub_cache_destroy(cache);
    uslub_cache_prefill(cache, K, 2);
}

static void free_after_destroy(void)
{
    void *kept = object();
    uslub_cache_free(cache, kept);
    uslub_cache_destroy(cache);
    uslub_cache_free(cache, kept);
}

static void free_foreign(void)
{
    int local;
    uslub_cache_free(cache, &local);
}

static void kfree_foreign(void)
{
    int local;
    uslub_kfree(&local);
}

static void krealloc_foreign(void)
{
    static char constant[64];
    uslub_krealloc(constant + 8, 100, K);
}

static void free_twice(void)
{
    void *kept = object();
    uslub_cache_free(cache, kept);
    uslub_cache_shrink(cache);
    uslub_cache_free(cache, kept);
}

static void free_interior(void)
{
    uslub_cache_free(cache, (char *)object() + 8);
    uslub_cache_shrink(cache);
}

static void null_cache(void)
{
    uslub_cache_alloc(NULL, K);
}

static void null_cache_free(void)
{
    uslub_cache_free(NULL, object());
}

static void null_sheaf(void)
{
    uslub_cache_alloc_from(cache, K, NULL);
}

static void null_pool(void)
{
    uslub_mempool_alloc(NULL, K);
}

static void null_buckets(void)
{
    uslub_buckets_alloc(NULL, 8, K);
}

static void no_grace_period(void)
{
    uslub_cache_free_rcu(cache, object());
    uslub_rcu_barrier();
    for (int i = 0; i < 1000; i++)
        uslub_cache_free_rcu(cache, object());
}

static void panics(void)
{
    struct uslub_cache_args args = { .size = 0, .flags = USLUB_CACHE_PANIC };
    uslub_cache_create("needed", &args);
}

static void panics_without_name(void)
{
    struct uslub_cache_args args = { .size = 8, .flags = USLUB_CACHE_PANIC };
    uslub_cache_create(NULL, &args);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    { "destroyed_twice", destroyed_twice },
    { "alloc_after_destroy", alloc_after_destroy },
    { "bulk_after_destroy", bulk_after_destroy },
    { "prefill_after_destroy", prefill_after_destroy },
    { "free_after_destroy", free_after_destroy },
    { "free_foreign", free_foreign },
    { "kfree_foreign", kfree_foreign },
    { "krealloc_foreign", krealloc_foreign },
    { "free_twice", free_twice },
    { "free_interior", free_interior },
    { "null_cache", null_cache },
    { "null_cache_free", null_cache_free },
    { "null_sheaf", null_sheaf },
    { "null_pool", null_pool },
    { "null_buckets", null_buckets },
    { "no_grace_period", no_grace_period },
    { "panics", panics },
    { "panics_without_name", panics_without_name },
};

int main(int argc, char **argv)
{
    struct rlimit no_core = { 0, 0 };
    setrlimit(RLIMIT_CORE, &no_core);
    cache = cache_of("misused", 64);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
