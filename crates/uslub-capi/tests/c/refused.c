/*
 * Proves: arguments that make no sense are refused with the right errno, after a message, and
 * change nothing; what cannot be had is ENOMEM.
 */
#include "check.h"
#include <uslub/slab.h>

static void ctor(void *object)
{
    memset(object, 7, 16);
}

static int ctor_until(void *object, void *left)
{
    memset(object, 9, 16);
    return (*(int *)left)-- <= 0;
}

static struct uslub_cache *create(const char *name, struct uslub_cache_args args)
{
    return uslub_cache_create(name, &args);
}

#define REFUSED(name, ...) FAILS(create(name, (struct uslub_cache_args){ __VA_ARGS__ }), EINVAL)

static void arguments(void)
{
    REFUSED(NULL, .size = 8);
    REFUSED("", .size = 8);
    REFUSED("a name of just thirty-two bytes.", .size = 8);
    REFUSED("\xff\xfe", .size = 8);
    FAILS(uslub_cache_create("no arguments", NULL), EINVAL);
    REFUSED("size 0", .size = 0);
    REFUSED("size 65537", .size = 65537);
    REFUSED("size huge", .size = SIZE_MAX);
    REFUSED("align 24", .size = 8, .align = 24);
    REFUSED("align 8192", .size = 8, .align = 8192);
    REFUSED("align huge", .size = 8, .align = (size_t)1 << 63);
    REFUSED("limit 100", .size = 8, .limit = 100);
    REFUSED("flags", .size = 8, .flags = 1 << 20);
    REFUSED("readers", .size = 8, .flags = USLUB_CACHE_TYPESAFE_BY_RCU);
    REFUSED("reserved", .size = 8, .reserved = { 0, 0, 1 });
    REFUSED("two constructors", .size = 16, .ctor = ctor, .ctor_with = ctor_until);
    REFUSED("tuning", .size = 8, .tuning = "look_ahead=9");
    REFUSED("tuning name", .size = 8, .tuning = "sheaf_spill=1,colour=2");
    REFUSED("tuning process", .size = 8, .tuning = "decay_ms=5");
    REFUSED("tuning form", .size = 8, .tuning = "sheaf_spill");
    /* The longest name, and the extremes of size. */
    struct uslub_cache *longest = cache_of("a name of just thirty-one bytes", 1);
    CHECK(strcmp(uslub_cache_name(longest), "a name of just thirty-one bytes") == 0);
    struct uslub_cache *largest = cache_of("largest", 65536);
    void *object = uslub_cache_zalloc(largest, K);
    CHECK(object && uslub_cache_size(largest) == 65536);
    uslub_cache_free(largest, object);
    CHECK(uslub_cache_destroy(longest) == 0 && uslub_cache_destroy(largest) == 0);
    LEAVES_ERRNO(CHECK(uslub_cache_destroy(NULL) == 0));
}

static void constructors(void)
{
    struct uslub_cache *plain = create("constructed", (struct uslub_cache_args){ .size = 16, .ctor = ctor });
    FAILS(uslub_cache_zalloc(plain, K), EINVAL);
    void *objects[4];
    FAILS(uslub_cache_alloc_bulk(plain, K | USLUB_GFP_ZERO, 4, objects), EINVAL);
    char *object = uslub_cache_alloc(plain, K);
    CHECK(object && object[0] == 7 && object[15] == 7);
    uslub_cache_free(plain, object);
    CHECK(uslub_cache_destroy(plain) == 0);

    int left = 1;
    struct uslub_cache *fails = create(
        "fails", (struct uslub_cache_args){ .size = 16, .ctor_with = ctor_until, .ctor_data = &left, .sheaf_capacity = 1 });
    object = uslub_cache_alloc(fails, K);
    CHECK(object && object[0] == 9);
    FAILS(uslub_cache_alloc(fails, USLUB_GFP_NOWAIT), ENOMEM);
    left = 1000;
    char *other = uslub_cache_alloc(fails, K);
    CHECK(other && other[3] == 9);
    uslub_cache_free(fails, object);
    uslub_cache_free(fails, other);
    CHECK(uslub_cache_destroy(fails) == 0);
}

static void frees(void)
{
    struct uslub_cache *apples = cache_of("apples", 64), *pears = cache_of("pears", 64);
    LEAVES_ERRNO(uslub_cache_free(apples, NULL));
    LEAVES_ERRNO(uslub_kfree(NULL));
    LEAVES_ERRNO(uslub_cache_free_nolock(apples, NULL));
    void *apple = uslub_cache_alloc(apples, K);
    strcpy(apple, "still an apple");
    LEAVES_ERRNO(uslub_cache_free(pears, apple)); /* said, and leaked */
    void *both[] = { apple, NULL, uslub_cache_alloc(pears, K) };
    LEAVES_ERRNO(uslub_cache_free_bulk(pears, 3, both));
    CHECK(live(apples) == 1 && live(pears) == 0 && strcmp(apple, "still an apple") == 0);
    CHECK(uslub_cache_destroy(pears) == 0);
    CHECK(uslub_cache_destroy(apples) == 1); /* said by address */
    uslub_cache_free(apples, apple);         /* it lives on */
    CHECK(uslub_cache_destroy(apples) == 0);
}

static void bulk(void)
{
    struct uslub_cache *cache = create("bulk", (struct uslub_cache_args){ .size = 64, .limit = 8192 });
    void *objects[200] = { 0 };
    LEAVES_ERRNO(CHECK(uslub_cache_alloc_bulk(cache, K, 0, objects) == 0));
    LEAVES_ERRNO(CHECK(uslub_cache_alloc_bulk(cache, K, 0, NULL) == 0));
    LEAVES_ERRNO(uslub_cache_free_bulk(cache, 0, NULL));
    FAILS(uslub_cache_alloc_bulk(cache, K, SIZE_MAX / 4, objects), EINVAL);
    FAILS(uslub_cache_alloc_bulk(cache, K, 5, NULL), EINVAL);
    FAILS(uslub_cache_alloc_bulk(cache, K, 200, objects), ENOMEM);
    CHECK(live(cache) == 0); /* all or none */
    CHECK(uslub_cache_alloc_bulk(cache, K, 128, objects) == 128);
    FAILS(uslub_cache_alloc(cache, K), ENOMEM);
    uslub_cache_free_bulk(cache, 128, objects);
    CHECK(uslub_cache_destroy(cache) == 0);
}

static void sheaves(void)
{
    struct uslub_cache *cache = create(
        "sheaves", (struct uslub_cache_args){ .size = 64, .limit = 8192, .sheaf_capacity = 16 });
    FAILS(uslub_cache_prefill(cache, K, 0), EINVAL);
    FAILS(uslub_cache_prefill(cache, K, 1000), ENOMEM);
    FAILS(uslub_cache_prefill(cache, K, SIZE_MAX / 8), ENOMEM);
    CHECK(live(cache) == 0);
    /* beyond the capacity */
    struct uslub_sheaf *sheaf = uslub_cache_prefill(cache, K, 40);
    CHECK(uslub_sheaf_size(sheaf) == 40);
    /* the refill fails half-way: nothing is lost */
    void *rest[128];
    CHECK(uslub_cache_alloc_bulk(cache, K, 80, rest) == 80);
    errno = 0;
    CHECK(uslub_cache_refill(cache, K, &sheaf, 60) == -1 && errno == ENOMEM);
    CHECK(uslub_sheaf_size(sheaf) >= 40 && uslub_sheaf_size(sheaf) < 60);
    for (int i = 0; i < 40; i++)
        LEAVES_ERRNO(CHECK((rest[80 + i] = uslub_cache_alloc_from(cache, USLUB_GFP_NOSPIN, sheaf))));
    while (uslub_sheaf_size(sheaf))
        uslub_cache_free(cache, uslub_cache_alloc_from(cache, 0, sheaf));
    FAILS(uslub_cache_alloc_from(cache, K, sheaf), ENOMEM);
    uslub_cache_return(cache, K, sheaf);
    uslub_cache_return(cache, K, NULL);
    CHECK(uslub_sheaf_size(NULL) == 0);
    uslub_cache_free_bulk(cache, 120, rest);
    /* within the capacity */
    sheaf = uslub_cache_prefill(cache, K, 3);
    CHECK(uslub_sheaf_size(sheaf) >= 3);
    CHECK(uslub_cache_refill(cache, K, &sheaf, 2) == 0);
    uslub_cache_return(cache, K, sheaf);
    CHECK(uslub_cache_destroy(cache) == 0);
}

static void *none(uslub_gfp_t flags, void *data)
{
    (void)flags;
    (void)data;
    return NULL;
}

static void ignore(void *element, void *data)
{
    (void)element;
    (void)data;
}

static void pools(void)
{
    FAILS(uslub_mempool_create(4, NULL, ignore, NULL), EINVAL);
    FAILS(uslub_mempool_create(4, none, NULL, NULL), EINVAL);
    FAILS(uslub_mempool_create(4, none, ignore, NULL), ENOMEM);
    FAILS(uslub_mempool_create_kmalloc_pool(SIZE_MAX, 8), ENOMEM);
    FAILS(uslub_mempool_create_kmalloc_pool(4, SIZE_MAX), ENOMEM);
    struct uslub_cache *made = create("made", (struct uslub_cache_args){ .size = 16, .ctor = ctor });
    FAILS(uslub_mempool_create_slab_pool(4, made), EINVAL);
    CHECK(uslub_cache_destroy(made) == 0);

    struct uslub_cache *cache = create("pooled", (struct uslub_cache_args){ .size = 2048, .limit = 65536 });
    struct uslub_mempool *pool = uslub_mempool_create_slab_pool(4, cache);
    CHECK(pool && uslub_mempool_min_nr(pool) == 4 && uslub_mempool_curr_nr(pool) == 4);
    FAILS(uslub_mempool_alloc(pool, K | USLUB_GFP_ZERO), EINVAL);
    void *elements[5] = { 0 };
    FAILS(uslub_mempool_alloc_bulk(pool, K, 5, elements) == 0, EINVAL);
    FAILS(uslub_mempool_alloc_bulk(pool, K | USLUB_GFP_ZERO, 2, elements) == 0, EINVAL);
    FAILS(uslub_mempool_alloc_bulk(pool, K, 2, NULL) == 0, EINVAL);
    for (int i = 0; i < 4; i++)
        CHECK((elements[i] = uslub_mempool_alloc_preallocated(pool, K)));
    FAILS(uslub_mempool_alloc_preallocated(pool, K), ENOMEM);
    FAILS(uslub_mempool_resize(pool, 1000) == 0, ENOMEM);
    CHECK(uslub_mempool_min_nr(pool) == 4);
    LEAVES_ERRNO(uslub_mempool_free(pool, NULL));
    CHECK(uslub_mempool_free_bulk(pool, 5, elements) == 4); /* a null among them */
    LEAVES_ERRNO(CHECK(uslub_mempool_resize(pool, 0) == 0));
    uslub_mempool_destroy(pool);
    uslub_mempool_destroy(NULL);
    CHECK(uslub_cache_destroy(cache) == 0);
}

static size_t free_one(void *data, size_t n)
{
    void **held = data;
    if (!n || !*held)
        return 0;
    uslub_kfree(*held);
    *held = NULL;
    return 1;
}

static void the_rest(void)
{
    FAILS(uslub_kmalloc(SIZE_MAX, K), ENOMEM);
    FAILS(uslub_kzalloc(SIZE_MAX, K), ENOMEM);
    FAILS(uslub_kmalloc((size_t)PTRDIFF_MAX, K), ENOMEM);
    FAILS(uslub_kmalloc_array(SIZE_MAX / 2, 3, K), ENOMEM);
    FAILS(uslub_kmalloc_aligned(8, 24, K), EINVAL);
    FAILS(uslub_kmalloc_aligned(8, 0, K), EINVAL);
    FAILS(uslub_kmalloc_node(8, K | USLUB_GFP_THISNODE, 1000), ENOMEM);
    FAILS(uslub_kmemdup(NULL, 8, K), EINVAL);
    LEAVES_ERRNO(CHECK(!uslub_kstrdup(NULL, K)));
    CHECK(uslub_kmalloc_size_roundup(0) == 0 && uslub_kmalloc_size_roundup(SIZE_MAX) == SIZE_MAX);
    CHECK(uslub_ksize(NULL) == 0);
    char *text = uslub_kstrdup("as before", K);
    FAILS(uslub_krealloc(text, SIZE_MAX, K), ENOMEM);
    FAILS(uslub_krealloc_array(text, SIZE_MAX, 2, K), ENOMEM);
    CHECK(strcmp(text, "as before") == 0);
    uslub_kfree(text);
    void *aligned = uslub_kmalloc_aligned(100, 1 << 20, K);
    CHECK(aligned && (uintptr_t)aligned % (1 << 20) == 0);
    uslub_kfree(aligned);
    uslub_kfree_bulk(0, NULL);
    uslub_kfree_bulk(3, NULL); /* said */

    FAILS(uslub_buckets_create(NULL), EINVAL);
    FAILS(uslub_buckets_create(""), EINVAL);
    FAILS(uslub_buckets_create("a prefix of twenty-seven by"), EINVAL);
    struct uslub_buckets *buckets = uslub_buckets_create("set");
    FAILS(uslub_buckets_alloc(buckets, SIZE_MAX, K), ENOMEM);
    FAILS(uslub_buckets_alloc_aligned(buckets, 8, 3, K), EINVAL);
    void *kept = uslub_buckets_alloc(buckets, 33, K);
    CHECK(uslub_ksize(kept) == 48);
    void *page = uslub_buckets_alloc_aligned(buckets, 33, 4096, K);
    CHECK((uintptr_t)page % 4096 == 0);
    uslub_kfree(page);
    CHECK(uslub_buckets_destroy(buckets) == 1); /* said by address */
    CHECK(uslub_buckets_destroy(NULL) == 0);

    struct uslub_cache *cache = create("shrinks", (struct uslub_cache_args){ .size = 4096, .limit = 65536 });
    FAILS(uslub_shrinker_register(cache, NULL, NULL), EINVAL);
    void *objects[16];
    CHECK(uslub_cache_alloc_bulk(cache, K, 16, objects) == 16);
    FAILS(uslub_cache_alloc(cache, K), ENOMEM);
    void *spare = objects[3];
    struct uslub_shrinker *shrinker = uslub_shrinker_register(cache, free_one, &spare);
    CHECK(shrinker);
    CHECK(uslub_cache_alloc(cache, K) == objects[3] && !spare); /* it was freed for that */
    FAILS(uslub_cache_alloc(cache, K), ENOMEM);
    uslub_shrinker_unregister(shrinker);
    uslub_shrinker_unregister(NULL);
    FAILS(uslub_cache_get_stats(cache, NULL) == 0, EINVAL);
    uslub_cache_free_bulk(cache, 16, objects);
    CHECK(uslub_cache_destroy(cache) == 0);

    uint64_t value;
    cache = cache_of("counted", 32);
    FAILS(uslub_cache_stat(cache, "no such item", &value) == 0, EINVAL);
    FAILS(uslub_cache_stat(cache, NULL, &value) == 0, EINVAL);
    uslub_cache_free(cache, uslub_cache_alloc(cache, K));
    CHECK(uslub_cache_stat(cache, "alloc_slab", &value) == 0 && value > 0);
    FAILS(uslub_cache_print_stats(cache, -1) == 0, EIO);
    FAILS(uslub_slabinfo(-1) == 0, EIO);
    FAILS(uslub_get_totals(NULL) == 0, EINVAL);
    FAILS(uslub_set_call_rcu(NULL, NULL, NULL) == 0, EINVAL);
    FAILS(kmem_cache_create("kernel flags", 8, NULL, (slab_flags_t)1 << 31), EINVAL);
    CHECK(uslub_cache_destroy(cache) == 0);
}

static void too_many(void)
{
    static struct uslub_cache *caches[4096];
    size_t n = 0;
    char name[32];
    for (;; n++) {
        CHECK(n < 4096);
        snprintf(name, sizeof name, "one-of-many-%zu", n);
        errno = 0;
        caches[n] = create(name, (struct uslub_cache_args){ .size = 8 });
        if (!caches[n])
            break;
    }
    CHECK(errno == ENOMEM && n > 1000);
    while (n--)
        CHECK(uslub_cache_destroy(caches[n]) == 0);
    caches[0] = cache_of("there is room again", 8);
    CHECK(uslub_cache_destroy(caches[0]) == 0);
}

int main(void)
{
    arguments();
    constructors();
    frees();
    bulk();
    sheaves();
    pools();
    the_rest();
    too_many();
    CHECK(uslub_check() == 0);
    puts("all holds");
    return 0;
}
