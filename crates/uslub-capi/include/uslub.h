/*
 * uslub: object caches, the Linux kernel's slab allocator in user space.
 *
 * Success leaves errno alone, a failure sets it, frees keep it. Bad arguments are said on standard error and
 * refused with EINVAL; what can only be a bug of the caller (a null cache, a foreign pointer) ends the process with
 * a message. No function may be called between vfork and exec.
 *
 * Made of the library's sources by .ci/header; do not edit. <uslub/slab.h> has the kernel's names for all
 * this, <uslub.hpp> is for C++.
 */

#ifndef USLUB_H
#define USLUB_H

#include <stddef.h>
#include <stdint.h>

/** May map memory from the operating system, and may wait for a lock. */
#define USLUB_GFP_KERNEL 3

/** Never enters the operating system but to wake or await the holder of a lock. */
#define USLUB_GFP_NOWAIT 2

/**
 * Never maps memory and never waits for a lock, so also for signal handlers. No flag at all means
 * the same; this one says it where 0 stands for a default.
 */
#define USLUB_GFP_NOSPIN 256

/** The object's bytes are zero. */
#define USLUB_GFP_ZERO 4

/** Only memory of the node that was asked for will do. */
#define USLUB_GFP_THISNODE 8

/** Tried again until it succeeds; with USLUB_GFP_KERNEL only. */
#define USLUB_GFP_NOFAIL 16

/** Objects begin a cache line, small ones a fitting part of it. */
#define USLUB_CACHE_HWCACHE_ALIGN 1

/**
 * The cache may share the slabs of another whose objects are as large (to a word) and as aligned;
 * unless it has a constructor, a limit, a sheaf capacity, free_gfp or another flag.
 */
#define USLUB_CACHE_MERGE 2

/**
 * A freed object may be used again at once, but its slab stays a slab of this cache for a grace
 * period.
 */
#define USLUB_CACHE_TYPESAFE_BY_RCU 4

/**
 * The pages of a slab are touched when it is taken, so that no later touch enters the operating
 * system.
 */
#define USLUB_CACHE_PREFAULT 8

/** A cache that cannot be created ends the process. */
#define USLUB_CACHE_PANIC 16

/** A record of one who waits, liburcu's; two words. */
struct rcu_head;

/**
 * A set of size classes of one's own: objects whose size comes from outside are kept apart from
 * all others.
 */
struct uslub_buckets;

/** A cache: objects of one size. */
struct uslub_cache;

/**
 * A pool of elements, some of which are held in reserve.
 *
 * An allocation asks the source first (without the operating system), then the reserve, then the
 * source with all that the flags allow; then, with USLUB_GFP_KERNEL, it waits for a free. In the
 * child of a fork a pool may be used only if no other thread was in a call on it.
 */
struct uslub_mempool;

/** Objects that are set aside for their holder. */
struct uslub_sheaf;

/** A registered shrinker. */
struct uslub_shrinker;

/** What an allocation may do to get its memory: a sum of USLUB_GFP_ flags. */
typedef uint32_t uslub_gfp_t;

/**
 * Constructs an object of fresh memory; what it made stays over free and allocation. Called with
 * locks held where an allocation may not wait: it must not call this library, nor throw.
 */
typedef void (*uslub_ctor_fn)(void *object);

/**
 * As uslub_ctor_fn, with data of the caller's; returns 0, or anything else if it failed: then the
 * object must need no end, and the allocation fails.
 */
typedef int (*uslub_ctor_with_fn)(void *object, void *data);

/** What a cache is made of. All-zero but for size is a plain cache. */
struct uslub_cache_args {
    /** Bytes of an object, 1 to 65536. */
    size_t size;
    /** Alignment of an object in bytes, a power of two up to 4096; 0 for 8. */
    size_t align;
    /** USLUB_CACHE_ flags. */
    uint32_t flags;
    /**
     * What a plain free may do; 0 for USLUB_GFP_KERNEL. USLUB_GFP_NOSPIN for frees in signal
     * handlers.
     */
    uslub_gfp_t free_gfp;
    /** Constructs each object when it first leaves a fresh slab; null for none. */
    uslub_ctor_fn ctor;
    /** As ctor, which is null then. */
    uslub_ctor_with_fn ctor_with;
    /** Second argument of ctor_with. */
    void *ctor_data;
    /** Objects a sheaf holds, at most 249; 0 for what fits their size. */
    size_t sheaf_capacity;
    /** Bytes of slabs that the cache may have, at least one slab; 0 for no limit. */
    size_t limit;
    /**
     * How the cache is to behave, name=value separated by commas, as in USLUB_OPTIONS; null for
     * as all others.
     */
    const char *tuning;
    /** All 0. */
    size_t reserved[3];
};

/** Allocates an element, or returns null; what it may do is what flags says. */
typedef void *(*uslub_mempool_alloc_fn)(uslub_gfp_t flags, void *pool_data);

/** Frees an element of a uslub_mempool_alloc_fn. */
typedef void (*uslub_mempool_free_fn)(void *element, void *pool_data);

/** What runs after a grace period, with the record that was given. */
typedef void (*uslub_rcu_func)(struct rcu_head *head);

/** Calls func with head once, after a grace period, on any thread; liburcu's call_rcu. */
typedef void (*uslub_call_rcu_fn)(struct rcu_head *head, uslub_rcu_func func);

/**
 * Waits: for every callback that was given before (liburcu's rcu_barrier), or for a grace period
 * (synchronize_rcu).
 */
typedef void (*uslub_rcu_wait_fn)(void);

/** Frees up to n objects; returns how many it freed. It may allocate and free. */
typedef size_t (*uslub_scan_fn)(void *data, size_t n);

/** Figures of one cache. Exact when nobody uses the cache meanwhile. */
struct uslub_cache_stats {
    /** Bytes of an object as asked for. */
    size_t object_size;
    /** Bytes of a slot. */
    size_t size;
    /** Alignment of a slot in bytes. */
    size_t align;
    /** Slots of a slab. */
    size_t objects_per_slab;
    /** Pages of a slab. */
    size_t pages_per_slab;
    /** Objects a sheaf holds. */
    size_t sheaf_capacity;
    /** Names beyond the first that the cache goes by. */
    size_t aliases;
    /** Slots in all slabs. */
    size_t num_objs;
    /** Slots that are in use, those in sheaves included. */
    size_t active_objs;
    /** Objects in sheaves. */
    size_t cached_objs;
    /** Objects that the program holds. */
    size_t live_objs;
    /** Slabs. */
    size_t num_slabs;
    /** Slabs in which a slot is in use. */
    size_t active_slabs;
    /** Objects allocated so far. */
    uint64_t allocs;
    /** Objects freed so far. */
    uint64_t frees;
};

/** Figures of the library, in bytes. */
struct uslub_totals {
    /** Slots and pages that the program holds. */
    size_t live;
    /** Objects in sheaves. */
    size_t cached;
    /** Free slots in slabs. */
    size_t free;
    /** Slabs. */
    size_t slabs;
    /** Objects above 8 KiB. */
    size_t large;
    /** Objects above 256 KiB. */
    size_t huge;
    /** Free pages and mappings that are still resident. */
    size_t dirty;
    /** The library's own records. */
    size_t metadata;
    /** Objects allocated so far (not bytes). */
    uint64_t allocs;
    /** Objects freed so far (not bytes). */
    uint64_t frees;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates a cache. Null, with EINVAL or ENOMEM, after a message that says why.
 *
 * The caller promises: name is a text of 1 to 31 bytes; args is initialised.
 */
struct uslub_cache *uslub_cache_create(const char *name, const struct uslub_cache_args *args);

/**
 * Destroys a cache; null is ignored. Each object that is still in use is reported on standard
 * error, and then cache and memory live on. Returns how many there are; 0 also while others share
 * the cache (USLUB_CACHE_MERGE).
 *
 * Waits for what was given to uslub_cache_free_rcu. A cache that is destroyed already ends the
 * process.
 *
 * The caller promises: Nobody uses the cache any more, unless objects were leaked.
 */
size_t uslub_cache_destroy(struct uslub_cache *cache);

/**
 * Allocates an object; null with ENOMEM when memory cannot be had, and with EINVAL (after a
 * message) for USLUB_GFP_ZERO and a cache with a constructor.
 *
 * The caller promises: The cache is not destroyed.
 */
void *uslub_cache_alloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * As uslub_cache_alloc, from memory of a node if there is any, with USLUB_GFP_THISNODE from no
 * other; a negative node means any.
 *
 * The caller promises: As there.
 */
void *uslub_cache_alloc_node(struct uslub_cache *cache, uslub_gfp_t flags, int node);

/**
 * As uslub_cache_alloc with USLUB_GFP_ZERO.
 *
 * The caller promises: As there.
 */
void *uslub_cache_zalloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * Frees an object, in the context that the cache's free_gfp says; null is ignored.
 *
 * An object of another cache is not freed: a warning names both caches, and it leaks. Any other
 * pointer that is no object ends the process with a message, at once or when it reaches its slab.
 *
 * The caller promises: Nobody uses the object any more.
 */
void uslub_cache_free(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free, in a context of the caller's choice.
 *
 * The caller promises: As there.
 */
void uslub_cache_free_flags(struct uslub_cache *cache, void *object, uslub_gfp_t flags);

/**
 * As uslub_cache_free, without waiting for anything: for signal handlers.
 *
 * The caller promises: As there.
 */
void uslub_cache_free_nolock(struct uslub_cache *cache, void *object);

/**
 * Flushes all sheaves of a cache and gives its empty slabs back. Returns 1 if slabs remain, else
 * 0.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_shrink(struct uslub_cache *cache);

/**
 * Bytes of an object as asked for; the largest of those that share the cache.
 *
 * The caller promises: The cache is not destroyed.
 */
size_t uslub_cache_size(const struct uslub_cache *cache);

/**
 * Name of a cache, of the first that shares it; for as long as the cache lives.
 *
 * The caller promises: The cache is not destroyed.
 */
const char *uslub_cache_name(const struct uslub_cache *cache);

/**
 * Allocates n objects, all or none. Returns n; or 0, with ENOMEM when memory cannot be had,
 * with EINVAL (after a message) when the array or the flags make no sense. Then the array holds no
 * objects.
 *
 * The caller promises: The cache is not destroyed; objects has room for n.
 */
size_t uslub_cache_alloc_bulk(struct uslub_cache *cache, uslub_gfp_t flags, size_t n, void **objects);

/**
 * Frees n objects, as uslub_cache_free does each; their order in the array is lost.
 *
 * The caller promises: None is there twice, and nobody uses them any more.
 */
void uslub_cache_free_bulk(struct uslub_cache *cache, size_t n, void **objects);

/**
 * Sets at least n objects (at least 1) of a cache aside, so that as many
 * uslub_cache_alloc_from succeed. Null with ENOMEM when memory cannot be had, and then nothing
 * is taken; with EINVAL, after a message, for 0.
 *
 * The caller promises: The cache is not destroyed.
 */
struct uslub_sheaf *uslub_cache_prefill(struct uslub_cache *cache, uslub_gfp_t flags, size_t n);

/**
 * Fills a sheaf up, so that it has at least n objects; *sheaf may be another one afterwards.
 * Returns 0; or -1 with ENOMEM when memory cannot be had: then there may be more objects than
 * before, but never fewer.
 *
 * The caller promises: *sheaf is a sheaf of this cache, which is not destroyed.
 */
int uslub_cache_refill(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf **sheaf, size_t n);

/**
 * Takes an object that was set aside; null with ENOMEM when all are gone, never another way.
 *
 * The caller promises: sheaf is a sheaf of this cache.
 */
void *uslub_cache_alloc_from(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Gives a sheaf and what is left in it back; null is ignored.
 *
 * The caller promises: sheaf is a sheaf of this cache, and nobody uses it any more.
 */
void uslub_cache_return(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Objects in a sheaf; 0 for null.
 *
 * The caller promises: sheaf is null or a sheaf.
 */
size_t uslub_sheaf_size(const struct uslub_sheaf *sheaf);

/** Allocates bytes (0 counts as 1); null with ENOMEM when memory cannot be had. */
void *uslub_kmalloc(size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc with USLUB_GFP_ZERO. */
void *uslub_kzalloc(size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, from memory of a node if there is any, with USLUB_GFP_THISNODE from no
 * other; a negative node means any.
 */
void *uslub_kmalloc_node(size_t bytes, uslub_gfp_t flags, int node);

/**
 * As uslub_kmalloc, aligned to align bytes, a power of two; else null with EINVAL, after a
 * message.
 */
void *uslub_kmalloc_aligned(size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * As uslub_kmalloc of n times bytes; a product that is too large is memory that cannot be
 * had.
 */
void *uslub_kmalloc_array(size_t n, size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc_array with USLUB_GFP_ZERO. */
void *uslub_kcalloc(size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, without waiting for anything: for signal handlers. Of the flags only
 * USLUB_GFP_ZERO counts. When the size's own class has no free object, the next larger one is
 * tried.
 */
void *uslub_kmalloc_nolock(size_t bytes, uslub_gfp_t flags);

/**
 * Frees an object of the kmalloc family, of buckets or of any cache; null is ignored.
 *
 * A pointer that is no such object ends the process with a message.
 *
 * The caller promises: Nobody uses the object any more.
 */
void uslub_kfree(void *object);

/**
 * As uslub_kfree, without waiting for anything: for signal handlers. An object above 256 KiB
 * leaks with a warning, as only the operating system can take it back.
 *
 * The caller promises: As there.
 */
void uslub_kfree_nolock(void *object);

/**
 * As uslub_kfree, after all bytes of the object are zeroed.
 *
 * The caller promises: As there.
 */
void uslub_kfree_sensitive(void *object);

/**
 * Frees n objects, as uslub_kfree does each.
 *
 * The caller promises: None is there twice, and nobody uses them any more.
 */
void uslub_kfree_bulk(size_t n, void **objects);

/**
 * Changes an object's size, moving it if need be; null with ENOMEM when memory cannot be had, and
 * then the object is as before. A null object is allocated; 0 bytes count as 1.
 *
 * With USLUB_GFP_ZERO what is beyond the old size is zero, if the object was always allocated and
 * resized with it.
 *
 * The caller promises: object is null or live; after a success only the returned pointer is.
 */
void *uslub_krealloc(void *object, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_krealloc to n times bytes; a product that is too large is memory that cannot be
 * had.
 *
 * The caller promises: As there.
 */
void *uslub_krealloc_array(void *object, size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * Bytes that may be used of an object of the kmalloc family; of an object of a cache, its size. 0
 * for null.
 *
 * The caller promises: object is null or live.
 */
size_t uslub_ksize(const void *object);

/** Bytes that uslub_kmalloc of so many gives; 0, and more than there can be, stay as they are. */
size_t uslub_kmalloc_size_roundup(size_t bytes);

/**
 * A copy of a text; null for null, and with ENOMEM when memory cannot be had. Freed by
 * uslub_kfree.
 *
 * The caller promises: source is null or a C string.
 */
char *uslub_kstrdup(const char *source, uslub_gfp_t flags);

/**
 * As uslub_kstrdup, of at most most bytes.
 *
 * The caller promises: source is null, or has most bytes or a zero before that.
 */
char *uslub_kstrndup(const char *source, size_t most, uslub_gfp_t flags);

/**
 * A copy of bytes bytes; null with ENOMEM when memory cannot be had, and with EINVAL, after a
 * message, when the source is null. Freed by uslub_kfree.
 *
 * The caller promises: source has so many bytes.
 */
void *uslub_kmemdup(const void *source, size_t bytes, uslub_gfp_t flags);

/**
 * Creates a set; its caches are named prefix-size. Null with ENOMEM, or with EINVAL, after a
 * message, for a prefix that has not 1 to 26 bytes.
 *
 * The caller promises: prefix is null or a C string.
 */
struct uslub_buckets *uslub_buckets_create(const char *prefix);

/**
 * Allocates bytes (0 counts as 1); null with ENOMEM when memory cannot be had. Freed by
 * uslub_kfree. More than 8 KiB come from pages.
 *
 * The caller promises: The set is not destroyed.
 */
void *uslub_buckets_alloc(struct uslub_buckets *buckets, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_buckets_alloc, aligned to align bytes, a power of two; else null with EINVAL, after
 * a message.
 *
 * The caller promises: As there.
 */
void *uslub_buckets_alloc_aligned(struct uslub_buckets *buckets, size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * Destroys a set; null is ignored. Each object in a cache that is still in use is reported on
 * standard error, and then that cache and its memory live on. Returns how many there are.
 *
 * The caller promises: Nobody uses the set any more, unless objects were leaked.
 */
size_t uslub_buckets_destroy(struct uslub_buckets *buckets);

/**
 * Creates a pool that reserves min_nr elements of a source of one's own, all of which it takes
 * at once. Null with ENOMEM; with EINVAL, after a message, when a function is missing.
 *
 * The caller promises: The functions may be called with pool_data, on any thread, until the pool is destroyed. They
 * do not throw.
 */
struct uslub_mempool *uslub_mempool_create(size_t min_nr,
                                           uslub_mempool_alloc_fn alloc_fn,
                                           uslub_mempool_free_fn free_fn,
                                           void *pool_data);

/**
 * As uslub_mempool_create, of objects of a cache; with EINVAL, after a message, if it has a
 * constructor.
 *
 * The caller promises: The cache is destroyed after the pool.
 */
struct uslub_mempool *uslub_mempool_create_slab_pool(size_t min_nr, struct uslub_cache *cache);

/** As uslub_mempool_create, of objects of bytes from kmalloc. */
struct uslub_mempool *uslub_mempool_create_kmalloc_pool(size_t min_nr, size_t bytes);

/**
 * Gives all that is reserved back to the source; null is ignored. Elements that are still in
 * flight stay with those who have them.
 *
 * The caller promises: Nobody uses the pool any more.
 */
void uslub_mempool_destroy(struct uslub_mempool *pool);

/**
 * Allocates an element. With USLUB_GFP_KERNEL it waits for one and is never null; else null with
 * ENOMEM when source and reserve have none. With USLUB_GFP_ZERO always null with EINVAL, after a
 * message.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element of the reserve; null with ENOMEM when it is empty. With no flags nothing is
 * waited for.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc_preallocated(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element for each entry of elements that is null. Returns 0; or -1 with EINVAL for
 * more entries than the pool reserves and for USLUB_GFP_ZERO, with ENOMEM (never with
 * USLUB_GFP_KERNEL) when memory cannot be had. Entries that were filled before a failure stay
 * filled.
 *
 * The caller promises: The pool is not destroyed; elements has n entries.
 */
int uslub_mempool_alloc_bulk(struct uslub_mempool *pool, uslub_gfp_t flags, size_t n, void **elements);

/**
 * Frees an element; null is ignored. The reserve takes it if it is not full, or else the source.
 *
 * The caller promises: The element came from this pool or its source, and nobody uses it any more.
 */
void uslub_mempool_free(struct uslub_mempool *pool, void *element);

/**
 * Frees n elements; null is passed over. Returns how many went to the reserve; the source takes
 * the rest.
 *
 * The caller promises: As for uslub_mempool_free, and none is there twice.
 */
size_t uslub_mempool_free_bulk(struct uslub_mempool *pool, size_t n, void **elements);

/**
 * Changes how many elements a pool reserves, while others use it. Returns 0; or -1 with ENOMEM,
 * and then the pool is as before. A source may not resize its own pool.
 *
 * The caller promises: The pool is not destroyed.
 */
int uslub_mempool_resize(struct uslub_mempool *pool, size_t min_nr);

/**
 * Elements that a pool reserves.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_min_nr(struct uslub_mempool *pool);

/**
 * Elements in the reserve now.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_curr_nr(struct uslub_mempool *pool);

/**
 * Says how readers are waited for: with liburcu, uslub_set_call_rcu(call_rcu, rcu_barrier,
 * synchronize_rcu). Once, before anything waits for a grace period. Returns 0; or -1 with ENOMEM,
 * or with EINVAL, after a message, when a function is missing or it was said before. Threads that
 * free are registered with liburcu, where its flavour demands it.
 *
 * The caller promises: A callback runs, and synchronize returns, only after all readers have left that were inside a
 * read-side section; barrier returns only after all callbacks that were given before.
 */
int uslub_set_call_rcu(uslub_call_rcu_fn call_rcu, uslub_rcu_wait_fn barrier, uslub_rcu_wait_fn synchronize);

/**
 * Frees an object of a cache after a grace period; null is ignored. Where there is no memory for a
 * sheaf it waits for the grace period itself, so not from inside a read-side section.
 *
 * The caller promises: As for uslub_cache_free, but readers that are inside a read-side section may still look at the
 * object. A grace period was set.
 */
void uslub_cache_free_rcu(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free_rcu, for an object of the kmalloc family, of buckets or of any cache.
 *
 * The caller promises: As there.
 */
void uslub_kfree_rcu(void *object);

/**
 * Waits until all that was given to uslub_cache_free_rcu and uslub_kfree_rcu before is free.
 * Not from inside a read-side section.
 */
void uslub_rcu_barrier(void);

/**
 * Registers a function that can free objects when an allocation of the cache (of any, for null)
 * would fail for want of memory. Null with ENOMEM when there are 256 already; with EINVAL, after a
 * message, when the function is missing.
 *
 * The caller promises: scan may be called with data, on any thread, until it is unregistered. It does not throw.
 */
struct uslub_shrinker *uslub_shrinker_register(struct uslub_cache *cache, uslub_scan_fn scan, void *data);

/**
 * Unregisters a shrinker; null is ignored. It is not running afterwards, unless it is itself the
 * caller. The shrinkers of a cache are unregistered before it is destroyed.
 *
 * The caller promises: shrinker is registered.
 */
void uslub_shrinker_unregister(struct uslub_shrinker *shrinker);

/**
 * Fills stats with the figures of a cache. Returns 0; or -1 with EINVAL, after a message, for
 * null.
 *
 * The caller promises: The cache is not destroyed; stats can be written.
 */
int uslub_cache_get_stats(const struct uslub_cache *cache, struct uslub_cache_stats *stats);

/**
 * Reads a counter of a cache by the name that /sys/kernel/slab/CACHE/ gives it, such as
 * alloc_fastpath. Returns 0; or -1 with EINVAL for a name that is none.
 *
 * The caller promises: The cache is not destroyed; item is a C string, value can be written.
 */
int uslub_cache_stat(const struct uslub_cache *cache, const char *item, uint64_t *value);

/**
 * Reads what one CPU has counted, as uslub_cache_stat; 0 for a CPU that never used a cache.
 *
 * The caller promises: As there.
 */
int uslub_cache_stat_on(const struct uslub_cache *cache, const char *item, size_t cpu, uint64_t *value);

/**
 * Reads how a cache behaves: the value of a name such as sheaf_spill. Returns 0; or -1 with
 * EINVAL for a name that no cache has a value of.
 *
 * The caller promises: The cache is not destroyed; name is a C string, value can be written.
 */
int uslub_cache_tuning(const struct uslub_cache *cache, const char *name, uint32_t *value);

/**
 * Writes all counters of a cache to a file descriptor, a line with name and value each. Returns 0;
 * or -1, with EIO, if that failed.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_print_stats(const struct uslub_cache *cache, int fd);

/**
 * Fills totals with the figures of the library. Returns 0; or -1, with EINVAL, after a message,
 * for null.
 *
 * The caller promises: totals can be written.
 */
int uslub_get_totals(struct uslub_totals *totals);

/**
 * Gives as much memory back to the operating system as possible: sheaves are flushed, empty slabs
 * and free pages go. Returns 1 if there was any, else 0.
 */
int uslub_trim(void);

/**
 * Checks all of the library's structures. Returns 0 when they hold, else 1, after a message. For
 * quiet moments of tests.
 */
int uslub_check(void);

/**
 * Writes a line for each cache to a file descriptor, in the columns of /proc/slabinfo, version
 * 2.1; kmalloc's classes are caches too. Returns 0; or -1, with EIO, if that failed.
 */
int uslub_slabinfo(int fd);

/** Version of the library, as major.minor.patch. */
const char *uslub_version(void);

/**
 * Creates a set; its caches are named prefix-size. Null with ENOMEM, or with EINVAL, after a
 * message, for a prefix that has not 1 to 26 bytes.
 *
 * The caller promises: prefix is null or a C string.
 */
struct uslub_buckets *uslub_buckets_create(const char *prefix);

/**
 * Allocates bytes (0 counts as 1); null with ENOMEM when memory cannot be had. Freed by
 * uslub_kfree. More than 8 KiB come from pages.
 *
 * The caller promises: The set is not destroyed.
 */
void *uslub_buckets_alloc(struct uslub_buckets *buckets, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_buckets_alloc, aligned to align bytes, a power of two; else null with EINVAL, after
 * a message.
 *
 * The caller promises: As there.
 */
void *uslub_buckets_alloc_aligned(struct uslub_buckets *buckets, size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * Destroys a set; null is ignored. Each object in a cache that is still in use is reported on
 * standard error, and then that cache and its memory live on. Returns how many there are.
 *
 * The caller promises: Nobody uses the set any more, unless objects were leaked.
 */
size_t uslub_buckets_destroy(struct uslub_buckets *buckets);

/**
 * Allocates n objects, all or none. Returns n; or 0, with ENOMEM when memory cannot be had,
 * with EINVAL (after a message) when the array or the flags make no sense. Then the array holds no
 * objects.
 *
 * The caller promises: The cache is not destroyed; objects has room for n.
 */
size_t uslub_cache_alloc_bulk(struct uslub_cache *cache, uslub_gfp_t flags, size_t n, void **objects);

/**
 * Frees n objects, as uslub_cache_free does each; their order in the array is lost.
 *
 * The caller promises: None is there twice, and nobody uses them any more.
 */
void uslub_cache_free_bulk(struct uslub_cache *cache, size_t n, void **objects);

/**
 * Creates a cache. Null, with EINVAL or ENOMEM, after a message that says why.
 *
 * The caller promises: name is a text of 1 to 31 bytes; args is initialised.
 */
struct uslub_cache *uslub_cache_create(const char *name, const struct uslub_cache_args *args);

/**
 * Destroys a cache; null is ignored. Each object that is still in use is reported on standard
 * error, and then cache and memory live on. Returns how many there are; 0 also while others share
 * the cache (USLUB_CACHE_MERGE).
 *
 * Waits for what was given to uslub_cache_free_rcu. A cache that is destroyed already ends the
 * process.
 *
 * The caller promises: Nobody uses the cache any more, unless objects were leaked.
 */
size_t uslub_cache_destroy(struct uslub_cache *cache);

/**
 * Allocates an object; null with ENOMEM when memory cannot be had, and with EINVAL (after a
 * message) for USLUB_GFP_ZERO and a cache with a constructor.
 *
 * The caller promises: The cache is not destroyed.
 */
void *uslub_cache_alloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * As uslub_cache_alloc, from memory of a node if there is any, with USLUB_GFP_THISNODE from no
 * other; a negative node means any.
 *
 * The caller promises: As there.
 */
void *uslub_cache_alloc_node(struct uslub_cache *cache, uslub_gfp_t flags, int node);

/**
 * As uslub_cache_alloc with USLUB_GFP_ZERO.
 *
 * The caller promises: As there.
 */
void *uslub_cache_zalloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * Frees an object, in the context that the cache's free_gfp says; null is ignored.
 *
 * An object of another cache is not freed: a warning names both caches, and it leaks. Any other
 * pointer that is no object ends the process with a message, at once or when it reaches its slab.
 *
 * The caller promises: Nobody uses the object any more.
 */
void uslub_cache_free(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free, in a context of the caller's choice.
 *
 * The caller promises: As there.
 */
void uslub_cache_free_flags(struct uslub_cache *cache, void *object, uslub_gfp_t flags);

/**
 * As uslub_cache_free, without waiting for anything: for signal handlers.
 *
 * The caller promises: As there.
 */
void uslub_cache_free_nolock(struct uslub_cache *cache, void *object);

/**
 * Flushes all sheaves of a cache and gives its empty slabs back. Returns 1 if slabs remain, else
 * 0.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_shrink(struct uslub_cache *cache);

/**
 * Bytes of an object as asked for; the largest of those that share the cache.
 *
 * The caller promises: The cache is not destroyed.
 */
size_t uslub_cache_size(const struct uslub_cache *cache);

/**
 * Name of a cache, of the first that shares it; for as long as the cache lives.
 *
 * The caller promises: The cache is not destroyed.
 */
const char *uslub_cache_name(const struct uslub_cache *cache);

/**
 * A copy of a text; null for null, and with ENOMEM when memory cannot be had. Freed by
 * uslub_kfree.
 *
 * The caller promises: source is null or a C string.
 */
char *uslub_kstrdup(const char *source, uslub_gfp_t flags);

/**
 * As uslub_kstrdup, of at most most bytes.
 *
 * The caller promises: source is null, or has most bytes or a zero before that.
 */
char *uslub_kstrndup(const char *source, size_t most, uslub_gfp_t flags);

/**
 * A copy of bytes bytes; null with ENOMEM when memory cannot be had, and with EINVAL, after a
 * message, when the source is null. Freed by uslub_kfree.
 *
 * The caller promises: source has so many bytes.
 */
void *uslub_kmemdup(const void *source, size_t bytes, uslub_gfp_t flags);

/** Allocates bytes (0 counts as 1); null with ENOMEM when memory cannot be had. */
void *uslub_kmalloc(size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc with USLUB_GFP_ZERO. */
void *uslub_kzalloc(size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, from memory of a node if there is any, with USLUB_GFP_THISNODE from no
 * other; a negative node means any.
 */
void *uslub_kmalloc_node(size_t bytes, uslub_gfp_t flags, int node);

/**
 * As uslub_kmalloc, aligned to align bytes, a power of two; else null with EINVAL, after a
 * message.
 */
void *uslub_kmalloc_aligned(size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * As uslub_kmalloc of n times bytes; a product that is too large is memory that cannot be
 * had.
 */
void *uslub_kmalloc_array(size_t n, size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc_array with USLUB_GFP_ZERO. */
void *uslub_kcalloc(size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, without waiting for anything: for signal handlers. Of the flags only
 * USLUB_GFP_ZERO counts. When the size's own class has no free object, the next larger one is
 * tried.
 */
void *uslub_kmalloc_nolock(size_t bytes, uslub_gfp_t flags);

/**
 * Frees an object of the kmalloc family, of buckets or of any cache; null is ignored.
 *
 * A pointer that is no such object ends the process with a message.
 *
 * The caller promises: Nobody uses the object any more.
 */
void uslub_kfree(void *object);

/**
 * As uslub_kfree, without waiting for anything: for signal handlers. An object above 256 KiB
 * leaks with a warning, as only the operating system can take it back.
 *
 * The caller promises: As there.
 */
void uslub_kfree_nolock(void *object);

/**
 * As uslub_kfree, after all bytes of the object are zeroed.
 *
 * The caller promises: As there.
 */
void uslub_kfree_sensitive(void *object);

/**
 * Frees n objects, as uslub_kfree does each.
 *
 * The caller promises: None is there twice, and nobody uses them any more.
 */
void uslub_kfree_bulk(size_t n, void **objects);

/**
 * Changes an object's size, moving it if need be; null with ENOMEM when memory cannot be had, and
 * then the object is as before. A null object is allocated; 0 bytes count as 1.
 *
 * With USLUB_GFP_ZERO what is beyond the old size is zero, if the object was always allocated and
 * resized with it.
 *
 * The caller promises: object is null or live; after a success only the returned pointer is.
 */
void *uslub_krealloc(void *object, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_krealloc to n times bytes; a product that is too large is memory that cannot be
 * had.
 *
 * The caller promises: As there.
 */
void *uslub_krealloc_array(void *object, size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * Bytes that may be used of an object of the kmalloc family; of an object of a cache, its size. 0
 * for null.
 *
 * The caller promises: object is null or live.
 */
size_t uslub_ksize(const void *object);

/** Bytes that uslub_kmalloc of so many gives; 0, and more than there can be, stay as they are. */
size_t uslub_kmalloc_size_roundup(size_t bytes);

/**
 * Creates a pool that reserves min_nr elements of a source of one's own, all of which it takes
 * at once. Null with ENOMEM; with EINVAL, after a message, when a function is missing.
 *
 * The caller promises: The functions may be called with pool_data, on any thread, until the pool is destroyed. They
 * do not throw.
 */
struct uslub_mempool *uslub_mempool_create(size_t min_nr,
                                           uslub_mempool_alloc_fn alloc_fn,
                                           uslub_mempool_free_fn free_fn,
                                           void *pool_data);

/**
 * As uslub_mempool_create, of objects of a cache; with EINVAL, after a message, if it has a
 * constructor.
 *
 * The caller promises: The cache is destroyed after the pool.
 */
struct uslub_mempool *uslub_mempool_create_slab_pool(size_t min_nr, struct uslub_cache *cache);

/** As uslub_mempool_create, of objects of bytes from kmalloc. */
struct uslub_mempool *uslub_mempool_create_kmalloc_pool(size_t min_nr, size_t bytes);

/**
 * Gives all that is reserved back to the source; null is ignored. Elements that are still in
 * flight stay with those who have them.
 *
 * The caller promises: Nobody uses the pool any more.
 */
void uslub_mempool_destroy(struct uslub_mempool *pool);

/**
 * Allocates an element. With USLUB_GFP_KERNEL it waits for one and is never null; else null with
 * ENOMEM when source and reserve have none. With USLUB_GFP_ZERO always null with EINVAL, after a
 * message.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element of the reserve; null with ENOMEM when it is empty. With no flags nothing is
 * waited for.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc_preallocated(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element for each entry of elements that is null. Returns 0; or -1 with EINVAL for
 * more entries than the pool reserves and for USLUB_GFP_ZERO, with ENOMEM (never with
 * USLUB_GFP_KERNEL) when memory cannot be had. Entries that were filled before a failure stay
 * filled.
 *
 * The caller promises: The pool is not destroyed; elements has n entries.
 */
int uslub_mempool_alloc_bulk(struct uslub_mempool *pool, uslub_gfp_t flags, size_t n, void **elements);

/**
 * Frees an element; null is ignored. The reserve takes it if it is not full, or else the source.
 *
 * The caller promises: The element came from this pool or its source, and nobody uses it any more.
 */
void uslub_mempool_free(struct uslub_mempool *pool, void *element);

/**
 * Frees n elements; null is passed over. Returns how many went to the reserve; the source takes
 * the rest.
 *
 * The caller promises: As for uslub_mempool_free, and none is there twice.
 */
size_t uslub_mempool_free_bulk(struct uslub_mempool *pool, size_t n, void **elements);

/**
 * Changes how many elements a pool reserves, while others use it. Returns 0; or -1 with ENOMEM,
 * and then the pool is as before. A source may not resize its own pool.
 *
 * The caller promises: The pool is not destroyed.
 */
int uslub_mempool_resize(struct uslub_mempool *pool, size_t min_nr);

/**
 * Elements that a pool reserves.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_min_nr(struct uslub_mempool *pool);

/**
 * Elements in the reserve now.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_curr_nr(struct uslub_mempool *pool);

/**
 * Says how readers are waited for: with liburcu, uslub_set_call_rcu(call_rcu, rcu_barrier,
 * synchronize_rcu). Once, before anything waits for a grace period. Returns 0; or -1 with ENOMEM,
 * or with EINVAL, after a message, when a function is missing or it was said before. Threads that
 * free are registered with liburcu, where its flavour demands it.
 *
 * The caller promises: A callback runs, and synchronize returns, only after all readers have left that were inside a
 * read-side section; barrier returns only after all callbacks that were given before.
 */
int uslub_set_call_rcu(uslub_call_rcu_fn call_rcu, uslub_rcu_wait_fn barrier, uslub_rcu_wait_fn synchronize);

/**
 * Frees an object of a cache after a grace period; null is ignored. Where there is no memory for a
 * sheaf it waits for the grace period itself, so not from inside a read-side section.
 *
 * The caller promises: As for uslub_cache_free, but readers that are inside a read-side section may still look at the
 * object. A grace period was set.
 */
void uslub_cache_free_rcu(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free_rcu, for an object of the kmalloc family, of buckets or of any cache.
 *
 * The caller promises: As there.
 */
void uslub_kfree_rcu(void *object);

/**
 * Waits until all that was given to uslub_cache_free_rcu and uslub_kfree_rcu before is free.
 * Not from inside a read-side section.
 */
void uslub_rcu_barrier(void);

/**
 * Sets at least n objects (at least 1) of a cache aside, so that as many
 * uslub_cache_alloc_from succeed. Null with ENOMEM when memory cannot be had, and then nothing
 * is taken; with EINVAL, after a message, for 0.
 *
 * The caller promises: The cache is not destroyed.
 */
struct uslub_sheaf *uslub_cache_prefill(struct uslub_cache *cache, uslub_gfp_t flags, size_t n);

/**
 * Fills a sheaf up, so that it has at least n objects; *sheaf may be another one afterwards.
 * Returns 0; or -1 with ENOMEM when memory cannot be had: then there may be more objects than
 * before, but never fewer.
 *
 * The caller promises: *sheaf is a sheaf of this cache, which is not destroyed.
 */
int uslub_cache_refill(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf **sheaf, size_t n);

/**
 * Takes an object that was set aside; null with ENOMEM when all are gone, never another way.
 *
 * The caller promises: sheaf is a sheaf of this cache.
 */
void *uslub_cache_alloc_from(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Gives a sheaf and what is left in it back; null is ignored.
 *
 * The caller promises: sheaf is a sheaf of this cache, and nobody uses it any more.
 */
void uslub_cache_return(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Objects in a sheaf; 0 for null.
 *
 * The caller promises: sheaf is null or a sheaf.
 */
size_t uslub_sheaf_size(const struct uslub_sheaf *sheaf);

/**
 * Registers a function that can free objects when an allocation of the cache (of any, for null)
 * would fail for want of memory. Null with ENOMEM when there are 256 already; with EINVAL, after a
 * message, when the function is missing.
 *
 * The caller promises: scan may be called with data, on any thread, until it is unregistered. It does not throw.
 */
struct uslub_shrinker *uslub_shrinker_register(struct uslub_cache *cache, uslub_scan_fn scan, void *data);

/**
 * Unregisters a shrinker; null is ignored. It is not running afterwards, unless it is itself the
 * caller. The shrinkers of a cache are unregistered before it is destroyed.
 *
 * The caller promises: shrinker is registered.
 */
void uslub_shrinker_unregister(struct uslub_shrinker *shrinker);

/**
 * Writes a line for each cache to a file descriptor, in the columns of /proc/slabinfo, version
 * 2.1; kmalloc's classes are caches too. Returns 0; or -1, with EIO, if that failed.
 */
int uslub_slabinfo(int fd);

/**
 * Fills stats with the figures of a cache. Returns 0; or -1 with EINVAL, after a message, for
 * null.
 *
 * The caller promises: The cache is not destroyed; stats can be written.
 */
int uslub_cache_get_stats(const struct uslub_cache *cache, struct uslub_cache_stats *stats);

/**
 * Reads a counter of a cache by the name that /sys/kernel/slab/CACHE/ gives it, such as
 * alloc_fastpath. Returns 0; or -1 with EINVAL for a name that is none.
 *
 * The caller promises: The cache is not destroyed; item is a C string, value can be written.
 */
int uslub_cache_stat(const struct uslub_cache *cache, const char *item, uint64_t *value);

/**
 * Reads what one CPU has counted, as uslub_cache_stat; 0 for a CPU that never used a cache.
 *
 * The caller promises: As there.
 */
int uslub_cache_stat_on(const struct uslub_cache *cache, const char *item, size_t cpu, uint64_t *value);

/**
 * Reads how a cache behaves: the value of a name such as sheaf_spill. Returns 0; or -1 with
 * EINVAL for a name that no cache has a value of.
 *
 * The caller promises: The cache is not destroyed; name is a C string, value can be written.
 */
int uslub_cache_tuning(const struct uslub_cache *cache, const char *name, uint32_t *value);

/**
 * Writes all counters of a cache to a file descriptor, a line with name and value each. Returns 0;
 * or -1, with EIO, if that failed.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_print_stats(const struct uslub_cache *cache, int fd);

/**
 * Fills totals with the figures of the library. Returns 0; or -1, with EINVAL, after a message,
 * for null.
 *
 * The caller promises: totals can be written.
 */
int uslub_get_totals(struct uslub_totals *totals);

/**
 * Gives as much memory back to the operating system as possible: sheaves are flushed, empty slabs
 * and free pages go. Returns 1 if there was any, else 0.
 */
int uslub_trim(void);

/**
 * Checks all of the library's structures. Returns 0 when they hold, else 1, after a message. For
 * quiet moments of tests.
 */
int uslub_check(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* USLUB_H */
