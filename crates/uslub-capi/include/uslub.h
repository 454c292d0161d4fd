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

/** Enters the operating system only to wake or await the holder of a lock. */
#define USLUB_GFP_NOWAIT 2

/**
 * Never maps memory and never waits for a lock, so signal handlers may use it. The same as no flag
 * at all, but where 0 stands for a default this flag is explicit.
 */
#define USLUB_GFP_NOSPIN 256

/** The object's bytes are zero. */
#define USLUB_GFP_ZERO 4

/** Only memory of the requested node will do. */
#define USLUB_GFP_THISNODE 8

/** Tries again until it succeeds; only with USLUB_GFP_KERNEL. */
#define USLUB_GFP_NOFAIL 16

/** Objects begin at a cache line; small objects at a fraction of it that fits them. */
#define USLUB_CACHE_HWCACHE_ALIGN 1

/**
 * The cache may share the slabs of another cache whose objects have the same size, in whole words,
 * and the same alignment. Not if it has a constructor, a limit, a sheaf capacity, a tuning,
 * free_gfp, or the flag USLUB_CACHE_TYPESAFE_BY_RCU or USLUB_CACHE_PREFAULT.
 */
#define USLUB_CACHE_MERGE 2

/**
 * A freed object may be reused at once, but its slab stays a slab of this cache for a grace
 * period. uslub_set_call_rcu comes first; otherwise the cache is refused.
 */
#define USLUB_CACHE_TYPESAFE_BY_RCU 4

/**
 * The pages of a slab are touched when the slab is taken, so that no later touch enters the
 * operating system.
 */
#define USLUB_CACHE_PREFAULT 8

/** If the cache cannot be created, the process ends. */
#define USLUB_CACHE_PANIC 16

/** First number of the version that this header is of. */
#define USLUB_VERSION_MAJOR 0

/** Second number of the version that this header is of. */
#define USLUB_VERSION_MINOR 1

/** Third number of the version that this header is of. */
#define USLUB_VERSION_PATCH 0

/**
 * F: slab counters, freelists and pointers are checked at each call. As for all flags down to
 * USLUB_CACHE_TRACE, the cache then has no sheaves, and each call takes a lock.
 */
#define USLUB_CACHE_CONSISTENCY_CHECKS 256

/** Z: red zones on both sides of each object. */
#define USLUB_CACHE_RED_ZONE 512

/** P: free objects and padding are filled with a pattern. */
#define USLUB_CACHE_POISON 1024

/** U: who allocated and who freed each object last. */
#define USLUB_CACHE_STORE_USER 2048

/** T: a line on standard error for each allocation and each free. */
#define USLUB_CACHE_TRACE 4096

/** A: the cache takes part in failslab where the tunable failslab_cache is 1. */
#define USLUB_CACHE_FAILSLAB 8192

/** The cache takes no flags from slab_debug. */
#define USLUB_CACHE_NO_USER_FLAGS 16384

/**
 * Objects of different sizes: with U, the size that was asked for is kept; see
 * uslub_cache_alloc_sized.
 */
#define USLUB_CACHE_KMALLOC 32768

/** liburcu's record of a callback; two words. */
struct rcu_head;

/**
 * A set of size classes of the caller's own. It keeps objects whose size comes from outside apart
 * from all others.
 */
struct uslub_buckets;

/** A cache: objects of one size. */
struct uslub_cache;

/**
 * A pool of elements, some of which are held in reserve.
 *
 * An allocation asks the source first, without the operating system. It then asks the reserve,
 * then the source with all that the flags allow. With USLUB_GFP_KERNEL it then waits for a free.
 * In the child of a fork a pool may be used only if no other thread was in a call on it.
 */
struct uslub_mempool;

/** Objects set aside for their holder. */
struct uslub_sheaf;

/** A registered shrinker. */
struct uslub_shrinker;

/** What an allocation may do to get memory: a sum of USLUB_GFP_ flags. */
typedef uint32_t uslub_gfp_t;

/**
 * Constructs an object in fresh memory. The constructed state survives a free and the next
 * allocation. It may be called with locks held, for an allocation that may not wait. So it must
 * not call this library, and must not throw.
 */
typedef void (*uslub_ctor_fn)(void *object);

/**
 * As uslub_ctor_fn, with the caller's data. Returns 0 for success. Any other result makes the
 * allocation fail, and then the object must need no clean-up.
 */
typedef int (*uslub_ctor_with_fn)(void *object, void *data);

/** Arguments of a cache. If all but size is zero, it is a plain cache. */
struct uslub_cache_args {
    /** Bytes of an object, 1 to 65536. */
    size_t size;
    /** Alignment of an object in bytes, a power of two up to 4096; 0 for 8. */
    size_t align;
    /** Sum of USLUB_CACHE_ flags. */
    uint32_t flags;
    /**
     * What a plain free may do; 0 for USLUB_GFP_KERNEL. USLUB_GFP_NOSPIN is for frees in signal
     * handlers.
     */
    uslub_gfp_t free_gfp;
    /** Constructs each object when it first leaves a fresh slab; null for no constructor. */
    uslub_ctor_fn ctor;
    /** As ctor, with data; then ctor is null. */
    uslub_ctor_with_fn ctor_with;
    /** Second argument of ctor_with. */
    void *ctor_data;
    /** Objects that a sheaf holds; more than 500 count as 500; 0 for a number that fits their size. */
    size_t sheaf_capacity;
    /** Most bytes of slabs that the cache may have, at least one slab; 0 for no limit. */
    size_t limit;
    /**
     * Behaviour of the cache: name=value pairs separated by commas, as in USLUB_OPTIONS. Null
     * for the library's values.
     */
    const char *tuning;
    /** Must be 0. */
    size_t reserved[3];
};

/** Allocates an element, or returns null. flags says what it may do. */
typedef void *(*uslub_mempool_alloc_fn)(uslub_gfp_t flags, void *pool_data);

/** Frees an element of a uslub_mempool_alloc_fn. */
typedef void (*uslub_mempool_free_fn)(void *element, void *pool_data);

/** Runs after a grace period, with the record that was passed. */
typedef void (*uslub_rcu_func)(struct rcu_head *head);

/** Calls func with head once, after a grace period, on any thread: liburcu's call_rcu. */
typedef void (*uslub_call_rcu_fn)(struct rcu_head *head, uslub_rcu_func func);

/**
 * Waits for all callbacks passed before (liburcu's rcu_barrier), or for a grace period
 * (synchronize_rcu).
 */
typedef void (*uslub_rcu_wait_fn)(void);

/** Frees up to n objects; returns how many it freed. It may allocate and free. */
typedef size_t (*uslub_scan_fn)(void *data, size_t n);

/** Figures of one cache. Exact if nobody uses the cache meanwhile. */
struct uslub_cache_stats {
    /** Bytes of an object as requested. */
    size_t object_size;
    /** Bytes of a slot. */
    size_t size;
    /** Alignment of a slot in bytes. */
    size_t align;
    /** Slots in a slab. */
    size_t objects_per_slab;
    /** Pages of 4 KiB in a slab. */
    size_t pages_per_slab;
    /** Objects that a sheaf holds. */
    size_t sheaf_capacity;
    /** Further names of the cache, beyond the first. */
    size_t aliases;
    /** Slots in all slabs. */
    size_t num_objs;
    /** Slots in use, including objects in sheaves. */
    size_t active_objs;
    /** Objects in sheaves. */
    size_t cached_objs;
    /** Objects that the program holds. */
    size_t live_objs;
    /** Number of slabs. */
    size_t num_slabs;
    /** Slabs with a slot in use. */
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
 * Creates a cache. Null with EINVAL or ENOMEM, after a message with the reason.
 *
 * The caller promises: name is a text of 1 to 31 bytes; args is initialised.
 */
struct uslub_cache *uslub_cache_create(const char *name, const struct uslub_cache_args *args);

/**
 * Destroys a cache; null is ignored. Each object that is still in use is reported on standard
 * error, and then the cache and its memory stay. Returns the number of such objects. Returns 0,
 * and destroys nothing, while other creators share the cache (USLUB_CACHE_MERGE).
 *
 * Waits for all objects given to uslub_cache_free_rcu. Ends the process if the cache is already
 * destroyed.
 *
 * The caller promises: Nobody uses the cache any longer, except for leaked objects.
 */
size_t uslub_cache_destroy(struct uslub_cache *cache);

/**
 * Allocates an object. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
 * for USLUB_GFP_ZERO on a cache with a constructor.
 *
 * The caller promises: The cache is not destroyed.
 */
void *uslub_cache_alloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * As uslub_cache_alloc, from a memory node if it has memory. With USLUB_GFP_THISNODE from no
 * other node. A negative node means any.
 *
 * The caller promises: As for uslub_cache_alloc.
 */
void *uslub_cache_alloc_node(struct uslub_cache *cache, uslub_gfp_t flags, int node);

/**
 * As uslub_cache_alloc with USLUB_GFP_ZERO.
 *
 * The caller promises: As for uslub_cache_alloc.
 */
void *uslub_cache_zalloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * Frees an object; null is ignored. The cache's free_gfp says what the free may do.
 *
 * An object of another cache is not freed: a warning names both caches, and the object leaks. Any
 * other pointer that is no object ends the process with a message, at once or when it reaches its
 * slab.
 *
 * The caller promises: Nobody uses the object any longer.
 */
void uslub_cache_free(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free, but the caller's flags say what the free may do.
 *
 * The caller promises: As for uslub_cache_free.
 */
void uslub_cache_free_flags(struct uslub_cache *cache, void *object, uslub_gfp_t flags);

/**
 * As uslub_cache_free, but it never waits: for signal handlers.
 *
 * The caller promises: As for uslub_cache_free.
 */
void uslub_cache_free_nolock(struct uslub_cache *cache, void *object);

/**
 * Flushes all sheaves of a cache and frees its empty slabs. Returns 1 if slabs remain, otherwise
 * 0.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_shrink(struct uslub_cache *cache);

/**
 * Bytes of an object as requested at creation; the largest request if others share the cache.
 *
 * The caller promises: The cache is not destroyed.
 */
size_t uslub_cache_size(const struct uslub_cache *cache);

/**
 * Name of a cache; the first creator's name if others share it. Valid as long as the cache lives.
 *
 * The caller promises: The cache is not destroyed.
 */
const char *uslub_cache_name(const struct uslub_cache *cache);

/**
 * Allocates n objects, all or none. Returns n. Returns 0 with ENOMEM if there is no memory,
 * and 0 with EINVAL, after a message, if the array or the flags are invalid. Then the array holds
 * no objects.
 *
 * The caller promises: The cache is not destroyed; objects has room for n pointers.
 */
size_t uslub_cache_alloc_bulk(struct uslub_cache *cache, uslub_gfp_t flags, size_t n, void **objects);

/**
 * Frees n objects, each as by uslub_cache_free. The order of the array is lost.
 *
 * The caller promises: No object is in the array twice, and nobody uses the objects any longer.
 */
void uslub_cache_free_bulk(struct uslub_cache *cache, size_t n, void **objects);

/**
 * Sets at least n objects (at least 1) of a cache aside. Then n calls of
 * uslub_cache_alloc_from succeed. Null with ENOMEM, and nothing is taken, if there is no memory.
 * Null with EINVAL, after a message, for 0 objects.
 *
 * The caller promises: The cache is not destroyed.
 */
struct uslub_sheaf *uslub_cache_prefill(struct uslub_cache *cache, uslub_gfp_t flags, size_t n);

/**
 * Refills a sheaf to at least n objects; may replace *sheaf. Returns 0. Returns -1 with ENOMEM
 * if there is no memory: then the sheaf has as many objects as before or more.
 *
 * The caller promises: *sheaf is a sheaf of this cache, and the cache is not destroyed.
 */
int uslub_cache_refill(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf **sheaf, size_t n);

/**
 * Takes an object that was set aside. Null with ENOMEM if none is left; it has no other source.
 *
 * The caller promises: sheaf is a sheaf of this cache.
 */
void *uslub_cache_alloc_from(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Returns a sheaf and the objects left in it; null is ignored.
 *
 * The caller promises: sheaf is a sheaf of this cache, and nobody uses it any longer.
 */
void uslub_cache_return(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Number of objects in a sheaf; 0 for null.
 *
 * The caller promises: sheaf is null or a sheaf.
 */
size_t uslub_sheaf_size(const struct uslub_sheaf *sheaf);

/** Allocates bytes bytes (0 counts as 1). Null with ENOMEM if there is no memory. */
void *uslub_kmalloc(size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc with USLUB_GFP_ZERO. */
void *uslub_kzalloc(size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, from a memory node if it has memory. With USLUB_GFP_THISNODE from no other
 * node. A negative node means any.
 */
void *uslub_kmalloc_node(size_t bytes, uslub_gfp_t flags, int node);

/**
 * As uslub_kmalloc, aligned to align bytes. Null with EINVAL, after a message, if align is
 * not a power of two.
 */
void *uslub_kmalloc_aligned(size_t bytes, size_t align, uslub_gfp_t flags);

/** As uslub_kmalloc of n times bytes bytes. Null with ENOMEM if the product overflows. */
void *uslub_kmalloc_array(size_t n, size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc_array with USLUB_GFP_ZERO. */
void *uslub_kcalloc(size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, but it never waits: for signal handlers. USLUB_GFP_ZERO is the only flag
 * that has an effect. If the size's class has no free object, the next larger class is tried.
 */
void *uslub_kmalloc_nolock(size_t bytes, uslub_gfp_t flags);

/**
 * Frees an object of the kmalloc family, of buckets or of any cache; null is ignored.
 *
 * Any other pointer ends the process with a message.
 *
 * The caller promises: Nobody uses the object any longer.
 */
void uslub_kfree(void *object);

/**
 * As uslub_kfree, but it never waits: for signal handlers. An object above 256 KiB leaks with a
 * warning, because only the operating system can take it back.
 *
 * The caller promises: As for uslub_kfree.
 */
void uslub_kfree_nolock(void *object);

/**
 * As uslub_kfree, after it has zeroed all bytes of the object.
 *
 * The caller promises: As for uslub_kfree.
 */
void uslub_kfree_sensitive(void *object);

/**
 * Frees n objects, each as by uslub_kfree.
 *
 * The caller promises: No object is in the array twice, and nobody uses the objects any longer.
 */
void uslub_kfree_bulk(size_t n, void **objects);

/**
 * Changes an object's size; may move it. Null with ENOMEM if there is no memory, and then the
 * object is unchanged. A null object is allocated. 0 bytes count as 1.
 *
 * With USLUB_GFP_ZERO the bytes beyond the old size are zero, if the object was always allocated
 * and resized with this flag.
 *
 * The caller promises: object is null or live. After a success only the returned pointer is live.
 */
void *uslub_krealloc(void *object, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_krealloc to n times bytes bytes. Null with ENOMEM if the product overflows.
 *
 * The caller promises: As for uslub_krealloc.
 */
void *uslub_krealloc_array(void *object, size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * Usable bytes of an object of the kmalloc family; the size of an object of a cache. 0 for null.
 *
 * The caller promises: object is null or live.
 */
size_t uslub_ksize(const void *object);

/**
 * Bytes that uslub_kmalloc gives for a request of bytes bytes. 0 and sizes that are too large
 * stay unchanged.
 */
size_t uslub_kmalloc_size_roundup(size_t bytes);

/**
 * Copies a text. Null for null. Null with ENOMEM if there is no memory. uslub_kfree frees the
 * copy.
 *
 * The caller promises: source is null or a C string.
 */
char *uslub_kstrdup(const char *source, uslub_gfp_t flags);

/**
 * As uslub_kstrdup, but at most most bytes of the text.
 *
 * The caller promises: source is null, or has most bytes, or a zero before.
 */
char *uslub_kstrndup(const char *source, size_t most, uslub_gfp_t flags);

/**
 * Copies bytes bytes. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
 * if the source is null. uslub_kfree frees the copy.
 *
 * The caller promises: source has bytes bytes.
 */
void *uslub_kmemdup(const void *source, size_t bytes, uslub_gfp_t flags);

/**
 * Creates a set whose caches are named prefix-size. Null with ENOMEM. Null with EINVAL, after a
 * message, if the prefix does not have 1 to 26 bytes.
 *
 * The caller promises: prefix is null or a C string.
 */
struct uslub_buckets *uslub_buckets_create(const char *prefix);

/**
 * Allocates bytes bytes (0 counts as 1). Null with ENOMEM if there is no memory. uslub_kfree
 * frees the object. Objects of more than 8 KiB come from pages.
 *
 * The caller promises: The set is not destroyed.
 */
void *uslub_buckets_alloc(struct uslub_buckets *buckets, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_buckets_alloc, aligned to align bytes. Null with EINVAL, after a message, if
 * align is not a power of two.
 *
 * The caller promises: As for uslub_buckets_alloc.
 */
void *uslub_buckets_alloc_aligned(struct uslub_buckets *buckets, size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * Destroys a set; null is ignored. Each object that is still in use is reported on standard error.
 * A cache with such objects stays, with its memory. Returns the number of such objects.
 *
 * The caller promises: Nobody uses the set any longer, except for leaked objects.
 */
size_t uslub_buckets_destroy(struct uslub_buckets *buckets);

/**
 * Creates a pool whose elements come from the caller's functions. It takes its reserve of min_nr
 * elements at once. Null with ENOMEM. Null with EINVAL, after a message, if a function is missing.
 *
 * The caller promises: The functions may be called with pool_data, on any thread, until the pool is destroyed. They
 * do not throw.
 */
struct uslub_mempool *uslub_mempool_create(size_t min_nr,
                                           uslub_mempool_alloc_fn alloc_fn,
                                           uslub_mempool_free_fn free_fn,
                                           void *pool_data);

/**
 * As uslub_mempool_create, for objects of a cache. Null with EINVAL, after a message, if the
 * cache has a constructor.
 *
 * The caller promises: The cache is destroyed after the pool.
 */
struct uslub_mempool *uslub_mempool_create_slab_pool(size_t min_nr, struct uslub_cache *cache);

/** As uslub_mempool_create, for objects of bytes bytes from kmalloc. */
struct uslub_mempool *uslub_mempool_create_kmalloc_pool(size_t min_nr, size_t bytes);

/**
 * Destroys a pool: gives its reserve back to the source. Null is ignored. Elements in use stay
 * with their users.
 *
 * The caller promises: Nobody uses the pool any longer.
 */
void uslub_mempool_destroy(struct uslub_mempool *pool);

/**
 * Allocates an element. With USLUB_GFP_KERNEL it waits for an element and never returns null.
 * Otherwise null with ENOMEM if source and reserve have none. With USLUB_GFP_ZERO always null with
 * EINVAL, after a message.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element of the reserve; null with ENOMEM if the reserve is empty. With no flags it
 * never waits.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc_preallocated(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element for each entry of elements that is null. Returns 0. Returns -1 with
 * EINVAL for more entries than the pool reserves, and for USLUB_GFP_ZERO. Returns -1 with ENOMEM
 * if there is no memory (never with USLUB_GFP_KERNEL). Entries that were filled before a failure
 * stay filled.
 *
 * The caller promises: The pool is not destroyed; elements has n entries.
 */
int uslub_mempool_alloc_bulk(struct uslub_mempool *pool, uslub_gfp_t flags, size_t n, void **elements);

/**
 * Frees an element; null is ignored. The element goes to the reserve unless the reserve is full,
 * and then to the source.
 *
 * The caller promises: The element came from this pool or its source, and nobody uses it any longer.
 */
void uslub_mempool_free(struct uslub_mempool *pool, void *element);

/**
 * Frees n elements; null is skipped. Returns how many went to the reserve; the others went to
 * the source.
 *
 * The caller promises: As for uslub_mempool_free, and no element is in the array twice.
 */
size_t uslub_mempool_free_bulk(struct uslub_mempool *pool, size_t n, void **elements);

/**
 * Changes how many elements a pool reserves; other threads may use the pool meanwhile. Returns 0.
 * Returns -1 with ENOMEM, and then the pool is unchanged. A source must not resize its own pool.
 *
 * The caller promises: The pool is not destroyed.
 */
int uslub_mempool_resize(struct uslub_mempool *pool, size_t min_nr);

/**
 * Number of elements that a pool reserves.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_min_nr(struct uslub_mempool *pool);

/**
 * Number of elements in the reserve now.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_curr_nr(struct uslub_mempool *pool);

/**
 * Sets the functions that wait for readers. With liburcu: uslub_set_call_rcu(call_rcu,
 * rcu_barrier, synchronize_rcu). Call it once, before anything waits for a grace period. Returns
 * 0. Returns -1 with ENOMEM. Returns -1 with EINVAL, after a message, if a function is missing or
 * the functions were set before. Threads that free must be registered with liburcu if its flavour
 * demands this.
 *
 * The caller promises: A callback runs, and synchronize returns, only after all readers have left that were inside a
 * read-side section. barrier returns only after all callbacks passed before.
 */
int uslub_set_call_rcu(uslub_call_rcu_fn call_rcu, uslub_rcu_wait_fn barrier, uslub_rcu_wait_fn synchronize);

/**
 * Frees an object of a cache after a grace period; null is ignored. Without memory to let the
 * object wait, it waits for the grace period itself. So it must not be called inside a read-side
 * section.
 *
 * The caller promises: As for uslub_cache_free, but readers inside a read-side section may still read the object. A
 * grace period was set.
 */
void uslub_cache_free_rcu(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free_rcu, for an object of the kmalloc family, of buckets or of any cache.
 *
 * The caller promises: As for uslub_cache_free_rcu.
 */
void uslub_kfree_rcu(void *object);

/**
 * Waits until all objects given to uslub_cache_free_rcu and uslub_kfree_rcu before are free.
 * It must not be called inside a read-side section.
 */
void uslub_rcu_barrier(void);

/**
 * Registers a function that can free objects. It runs when an allocation of the cache (of any
 * cache, for null) would fail because there is no memory. Null with ENOMEM if there are 256
 * already. Null with EINVAL, after a message, if the function is missing.
 *
 * The caller promises: scan may be called with data, on any thread, until it is unregistered. It does not throw.
 */
struct uslub_shrinker *uslub_shrinker_register(struct uslub_cache *cache, uslub_scan_fn scan, void *data);

/**
 * Unregisters a shrinker; null is ignored. Afterwards the shrinker is not running, unless it is
 * itself the caller. Unregister a cache's shrinkers before you destroy the cache.
 *
 * The caller promises: shrinker is registered.
 */
void uslub_shrinker_unregister(struct uslub_shrinker *shrinker);

/**
 * Fills stats with the figures of a cache. Returns 0. Returns -1 with EINVAL, after a message,
 * if stats is null.
 *
 * The caller promises: The cache is not destroyed; stats can be written.
 */
int uslub_cache_get_stats(const struct uslub_cache *cache, struct uslub_cache_stats *stats);

/**
 * Reads a counter of a cache. Its name is that in /sys/kernel/slab/CACHE/, such as
 * alloc_fastpath. Returns 0. Returns -1 with EINVAL for an unknown name.
 *
 * The caller promises: The cache is not destroyed; item is a C string, value can be written.
 */
int uslub_cache_stat(const struct uslub_cache *cache, const char *item, uint64_t *value);

/**
 * As uslub_cache_stat, for one CPU; 0 for a CPU that never used a cache.
 *
 * The caller promises: As for uslub_cache_stat.
 */
int uslub_cache_stat_on(const struct uslub_cache *cache, const char *item, size_t cpu, uint64_t *value);

/**
 * Reads a setting of a cache by its name, such as sheaf_spill. Returns 0. Returns -1 with EINVAL
 * for a name that is no setting of a cache.
 *
 * The caller promises: The cache is not destroyed; name is a C string, value can be written.
 */
int uslub_cache_tuning(const struct uslub_cache *cache, const char *name, uint32_t *value);

/**
 * Writes all counters of a cache to a file descriptor, one line with name and value for each.
 * Returns 0. Returns -1 with EIO if a write failed.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_print_stats(const struct uslub_cache *cache, int fd);

/**
 * Fills totals with the figures of the library. Returns 0. Returns -1 with EINVAL, after a
 * message, if totals is null.
 *
 * The caller promises: totals can be written.
 */
int uslub_get_totals(struct uslub_totals *totals);

/**
 * Says how full the slab of an object is: used of its slots are in use, including objects in
 * sheaves. A program that moves its objects (active defragmentation) learns which ones to move. An
 * object of more than 8 KiB has its pages alone: 1 of 1. Takes no lock for other objects. Returns
 * 0. Returns -1 with EINVAL, after a message, if used or slots is null; without a message, if
 * no object is there.
 *
 * The caller promises: used and slots can be written.
 */
int uslub_slab_use(const void *object, unsigned int *used, unsigned int *slots);

/**
 * Gives as much memory back to the operating system as possible: flushes sheaves, and frees empty
 * slabs and free pages. Returns 1 if it gave memory back, otherwise 0.
 */
int uslub_trim(void);

/**
 * Checks all of the library's structures, for tests: no other thread may use the library
 * meanwhile. Returns 0 if they are consistent, otherwise 1, after a message.
 */
int uslub_check(void);

/**
 * Writes a line for each cache to a file descriptor, in the columns of /proc/slabinfo, version
 * 2.1. The classes of kmalloc are caches too. Returns 0. Returns -1 with EIO if a write failed.
 */
int uslub_slabinfo(int fd);

/**
 * Version of the library, as major.minor.patch. A program that was compiled with another header
 * compares it with USLUB_VERSION_MAJOR and the others.
 */
const char *uslub_version(void);

/**
 * Creates a set whose caches are named prefix-size. Null with ENOMEM. Null with EINVAL, after a
 * message, if the prefix does not have 1 to 26 bytes.
 *
 * The caller promises: prefix is null or a C string.
 */
struct uslub_buckets *uslub_buckets_create(const char *prefix);

/**
 * Allocates bytes bytes (0 counts as 1). Null with ENOMEM if there is no memory. uslub_kfree
 * frees the object. Objects of more than 8 KiB come from pages.
 *
 * The caller promises: The set is not destroyed.
 */
void *uslub_buckets_alloc(struct uslub_buckets *buckets, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_buckets_alloc, aligned to align bytes. Null with EINVAL, after a message, if
 * align is not a power of two.
 *
 * The caller promises: As for uslub_buckets_alloc.
 */
void *uslub_buckets_alloc_aligned(struct uslub_buckets *buckets, size_t bytes, size_t align, uslub_gfp_t flags);

/**
 * Destroys a set; null is ignored. Each object that is still in use is reported on standard error.
 * A cache with such objects stays, with its memory. Returns the number of such objects.
 *
 * The caller promises: Nobody uses the set any longer, except for leaked objects.
 */
size_t uslub_buckets_destroy(struct uslub_buckets *buckets);

/**
 * Allocates n objects, all or none. Returns n. Returns 0 with ENOMEM if there is no memory,
 * and 0 with EINVAL, after a message, if the array or the flags are invalid. Then the array holds
 * no objects.
 *
 * The caller promises: The cache is not destroyed; objects has room for n pointers.
 */
size_t uslub_cache_alloc_bulk(struct uslub_cache *cache, uslub_gfp_t flags, size_t n, void **objects);

/**
 * Frees n objects, each as by uslub_cache_free. The order of the array is lost.
 *
 * The caller promises: No object is in the array twice, and nobody uses the objects any longer.
 */
void uslub_cache_free_bulk(struct uslub_cache *cache, size_t n, void **objects);

/**
 * Creates a cache. Null with EINVAL or ENOMEM, after a message with the reason.
 *
 * The caller promises: name is a text of 1 to 31 bytes; args is initialised.
 */
struct uslub_cache *uslub_cache_create(const char *name, const struct uslub_cache_args *args);

/**
 * Destroys a cache; null is ignored. Each object that is still in use is reported on standard
 * error, and then the cache and its memory stay. Returns the number of such objects. Returns 0,
 * and destroys nothing, while other creators share the cache (USLUB_CACHE_MERGE).
 *
 * Waits for all objects given to uslub_cache_free_rcu. Ends the process if the cache is already
 * destroyed.
 *
 * The caller promises: Nobody uses the cache any longer, except for leaked objects.
 */
size_t uslub_cache_destroy(struct uslub_cache *cache);

/**
 * Allocates an object. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
 * for USLUB_GFP_ZERO on a cache with a constructor.
 *
 * The caller promises: The cache is not destroyed.
 */
void *uslub_cache_alloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * As uslub_cache_alloc, from a memory node if it has memory. With USLUB_GFP_THISNODE from no
 * other node. A negative node means any.
 *
 * The caller promises: As for uslub_cache_alloc.
 */
void *uslub_cache_alloc_node(struct uslub_cache *cache, uslub_gfp_t flags, int node);

/**
 * As uslub_cache_alloc with USLUB_GFP_ZERO.
 *
 * The caller promises: As for uslub_cache_alloc.
 */
void *uslub_cache_zalloc(struct uslub_cache *cache, uslub_gfp_t flags);

/**
 * Frees an object; null is ignored. The cache's free_gfp says what the free may do.
 *
 * An object of another cache is not freed: a warning names both caches, and the object leaks. Any
 * other pointer that is no object ends the process with a message, at once or when it reaches its
 * slab.
 *
 * The caller promises: Nobody uses the object any longer.
 */
void uslub_cache_free(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free, but the caller's flags say what the free may do.
 *
 * The caller promises: As for uslub_cache_free.
 */
void uslub_cache_free_flags(struct uslub_cache *cache, void *object, uslub_gfp_t flags);

/**
 * As uslub_cache_free, but it never waits: for signal handlers.
 *
 * The caller promises: As for uslub_cache_free.
 */
void uslub_cache_free_nolock(struct uslub_cache *cache, void *object);

/**
 * Flushes all sheaves of a cache and frees its empty slabs. Returns 1 if slabs remain, otherwise
 * 0.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_shrink(struct uslub_cache *cache);

/**
 * Bytes of an object as requested at creation; the largest request if others share the cache.
 *
 * The caller promises: The cache is not destroyed.
 */
size_t uslub_cache_size(const struct uslub_cache *cache);

/**
 * Name of a cache; the first creator's name if others share it. Valid as long as the cache lives.
 *
 * The caller promises: The cache is not destroyed.
 */
const char *uslub_cache_name(const struct uslub_cache *cache);

/**
 * Copies a text. Null for null. Null with ENOMEM if there is no memory. uslub_kfree frees the
 * copy.
 *
 * The caller promises: source is null or a C string.
 */
char *uslub_kstrdup(const char *source, uslub_gfp_t flags);

/**
 * As uslub_kstrdup, but at most most bytes of the text.
 *
 * The caller promises: source is null, or has most bytes, or a zero before.
 */
char *uslub_kstrndup(const char *source, size_t most, uslub_gfp_t flags);

/**
 * Copies bytes bytes. Null with ENOMEM if there is no memory. Null with EINVAL, after a message,
 * if the source is null. uslub_kfree frees the copy.
 *
 * The caller promises: source has bytes bytes.
 */
void *uslub_kmemdup(const void *source, size_t bytes, uslub_gfp_t flags);

/**
 * Checks and repairs all slabs of a debugged cache. Returns the number of slabs that were looked
 * at. Returns -1 with EINVAL for a cache without F, Z, P, U and T. Never ends the process;
 * uslub_debug_errors tells what was found.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_validate(struct uslub_cache *cache);

/** Reports and repairs of debugged caches so far. */
uint32_t uslub_debug_errors(void);

/**
 * Switches F, T and U of a debugged cache: those in flags on, the others off. U only where the
 * cache began with U. Z and P stay. Returns 0. Returns -1 with EINVAL, after a message, if the
 * cache cannot be switched.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_set_debug(struct uslub_cache *cache, uint32_t flags);

/**
 * Debugs the size classes of uslub_kmalloc from now on, or stops that, by a value of slab_debug:
 * letters, then commas and names of classes, such as FZPU,kmalloc-48 or -,kmalloc-*. Letters
 * without names are for all classes. Objects in use stay where they are, and are checked as they
 * were allocated. Returns 0. Returns -1 after a message, with nothing switched: with EINVAL for an
 * unknown letter or name, with ENOMEM if there is no memory, with EOPNOTSUPP if the system refuses
 * membarrier.
 *
 * The caller promises: value is null or a C string that does not change.
 */
int uslub_kmalloc_set_debug(const char *value);

/**
 * As uslub_cache_alloc, for a caller that needs only bytes bytes of the object. With U and Z in
 * a cache with USLUB_CACHE_KMALLOC, the rest of the object is a red zone. Not zeroed.
 *
 * The caller promises: The cache is not destroyed.
 */
void *uslub_cache_alloc_sized(struct uslub_cache *cache, uslub_gfp_t flags, size_t bytes);

/**
 * Writes where the objects in use of a cache with U were allocated, or with freed where their
 * slots were freed before: a block for each caller, the most objects first. Returns 0. Returns -1
 * with EIO if a write failed.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_traces(struct uslub_cache *cache, int freed, int fd);

/**
 * Writes what is known of a pointer: cache, object, and with U who allocated and freed it. Returns
 * 1, or 0 for a pointer into no slab.
 */
int uslub_dump_object(const void *pointer, int fd);

/**
 * The n-th allocation from now on fails, counted over all threads and caches that may fail; 0 for
 * none. Returns 0. Returns -1 with EINVAL if no cache may fail, because the process did not start
 * with a failslab tunable, such as failslab_nth.
 */
int uslub_fail_nth(uint32_t n);

/** Allocations that failed on purpose so far. */
uint32_t uslub_fail_count(void);

/** Allocates bytes bytes (0 counts as 1). Null with ENOMEM if there is no memory. */
void *uslub_kmalloc(size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc with USLUB_GFP_ZERO. */
void *uslub_kzalloc(size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, from a memory node if it has memory. With USLUB_GFP_THISNODE from no other
 * node. A negative node means any.
 */
void *uslub_kmalloc_node(size_t bytes, uslub_gfp_t flags, int node);

/**
 * As uslub_kmalloc, aligned to align bytes. Null with EINVAL, after a message, if align is
 * not a power of two.
 */
void *uslub_kmalloc_aligned(size_t bytes, size_t align, uslub_gfp_t flags);

/** As uslub_kmalloc of n times bytes bytes. Null with ENOMEM if the product overflows. */
void *uslub_kmalloc_array(size_t n, size_t bytes, uslub_gfp_t flags);

/** As uslub_kmalloc_array with USLUB_GFP_ZERO. */
void *uslub_kcalloc(size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_kmalloc, but it never waits: for signal handlers. USLUB_GFP_ZERO is the only flag
 * that has an effect. If the size's class has no free object, the next larger class is tried.
 */
void *uslub_kmalloc_nolock(size_t bytes, uslub_gfp_t flags);

/**
 * Frees an object of the kmalloc family, of buckets or of any cache; null is ignored.
 *
 * Any other pointer ends the process with a message.
 *
 * The caller promises: Nobody uses the object any longer.
 */
void uslub_kfree(void *object);

/**
 * As uslub_kfree, but it never waits: for signal handlers. An object above 256 KiB leaks with a
 * warning, because only the operating system can take it back.
 *
 * The caller promises: As for uslub_kfree.
 */
void uslub_kfree_nolock(void *object);

/**
 * As uslub_kfree, after it has zeroed all bytes of the object.
 *
 * The caller promises: As for uslub_kfree.
 */
void uslub_kfree_sensitive(void *object);

/**
 * Frees n objects, each as by uslub_kfree.
 *
 * The caller promises: No object is in the array twice, and nobody uses the objects any longer.
 */
void uslub_kfree_bulk(size_t n, void **objects);

/**
 * Changes an object's size; may move it. Null with ENOMEM if there is no memory, and then the
 * object is unchanged. A null object is allocated. 0 bytes count as 1.
 *
 * With USLUB_GFP_ZERO the bytes beyond the old size are zero, if the object was always allocated
 * and resized with this flag.
 *
 * The caller promises: object is null or live. After a success only the returned pointer is live.
 */
void *uslub_krealloc(void *object, size_t bytes, uslub_gfp_t flags);

/**
 * As uslub_krealloc to n times bytes bytes. Null with ENOMEM if the product overflows.
 *
 * The caller promises: As for uslub_krealloc.
 */
void *uslub_krealloc_array(void *object, size_t n, size_t bytes, uslub_gfp_t flags);

/**
 * Usable bytes of an object of the kmalloc family; the size of an object of a cache. 0 for null.
 *
 * The caller promises: object is null or live.
 */
size_t uslub_ksize(const void *object);

/**
 * Bytes that uslub_kmalloc gives for a request of bytes bytes. 0 and sizes that are too large
 * stay unchanged.
 */
size_t uslub_kmalloc_size_roundup(size_t bytes);

/**
 * Creates a pool whose elements come from the caller's functions. It takes its reserve of min_nr
 * elements at once. Null with ENOMEM. Null with EINVAL, after a message, if a function is missing.
 *
 * The caller promises: The functions may be called with pool_data, on any thread, until the pool is destroyed. They
 * do not throw.
 */
struct uslub_mempool *uslub_mempool_create(size_t min_nr,
                                           uslub_mempool_alloc_fn alloc_fn,
                                           uslub_mempool_free_fn free_fn,
                                           void *pool_data);

/**
 * As uslub_mempool_create, for objects of a cache. Null with EINVAL, after a message, if the
 * cache has a constructor.
 *
 * The caller promises: The cache is destroyed after the pool.
 */
struct uslub_mempool *uslub_mempool_create_slab_pool(size_t min_nr, struct uslub_cache *cache);

/** As uslub_mempool_create, for objects of bytes bytes from kmalloc. */
struct uslub_mempool *uslub_mempool_create_kmalloc_pool(size_t min_nr, size_t bytes);

/**
 * Destroys a pool: gives its reserve back to the source. Null is ignored. Elements in use stay
 * with their users.
 *
 * The caller promises: Nobody uses the pool any longer.
 */
void uslub_mempool_destroy(struct uslub_mempool *pool);

/**
 * Allocates an element. With USLUB_GFP_KERNEL it waits for an element and never returns null.
 * Otherwise null with ENOMEM if source and reserve have none. With USLUB_GFP_ZERO always null with
 * EINVAL, after a message.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element of the reserve; null with ENOMEM if the reserve is empty. With no flags it
 * never waits.
 *
 * The caller promises: The pool is not destroyed.
 */
void *uslub_mempool_alloc_preallocated(struct uslub_mempool *pool, uslub_gfp_t flags);

/**
 * Allocates an element for each entry of elements that is null. Returns 0. Returns -1 with
 * EINVAL for more entries than the pool reserves, and for USLUB_GFP_ZERO. Returns -1 with ENOMEM
 * if there is no memory (never with USLUB_GFP_KERNEL). Entries that were filled before a failure
 * stay filled.
 *
 * The caller promises: The pool is not destroyed; elements has n entries.
 */
int uslub_mempool_alloc_bulk(struct uslub_mempool *pool, uslub_gfp_t flags, size_t n, void **elements);

/**
 * Frees an element; null is ignored. The element goes to the reserve unless the reserve is full,
 * and then to the source.
 *
 * The caller promises: The element came from this pool or its source, and nobody uses it any longer.
 */
void uslub_mempool_free(struct uslub_mempool *pool, void *element);

/**
 * Frees n elements; null is skipped. Returns how many went to the reserve; the others went to
 * the source.
 *
 * The caller promises: As for uslub_mempool_free, and no element is in the array twice.
 */
size_t uslub_mempool_free_bulk(struct uslub_mempool *pool, size_t n, void **elements);

/**
 * Changes how many elements a pool reserves; other threads may use the pool meanwhile. Returns 0.
 * Returns -1 with ENOMEM, and then the pool is unchanged. A source must not resize its own pool.
 *
 * The caller promises: The pool is not destroyed.
 */
int uslub_mempool_resize(struct uslub_mempool *pool, size_t min_nr);

/**
 * Number of elements that a pool reserves.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_min_nr(struct uslub_mempool *pool);

/**
 * Number of elements in the reserve now.
 *
 * The caller promises: The pool is not destroyed.
 */
size_t uslub_mempool_curr_nr(struct uslub_mempool *pool);

/**
 * Sets the functions that wait for readers. With liburcu: uslub_set_call_rcu(call_rcu,
 * rcu_barrier, synchronize_rcu). Call it once, before anything waits for a grace period. Returns
 * 0. Returns -1 with ENOMEM. Returns -1 with EINVAL, after a message, if a function is missing or
 * the functions were set before. Threads that free must be registered with liburcu if its flavour
 * demands this.
 *
 * The caller promises: A callback runs, and synchronize returns, only after all readers have left that were inside a
 * read-side section. barrier returns only after all callbacks passed before.
 */
int uslub_set_call_rcu(uslub_call_rcu_fn call_rcu, uslub_rcu_wait_fn barrier, uslub_rcu_wait_fn synchronize);

/**
 * Frees an object of a cache after a grace period; null is ignored. Without memory to let the
 * object wait, it waits for the grace period itself. So it must not be called inside a read-side
 * section.
 *
 * The caller promises: As for uslub_cache_free, but readers inside a read-side section may still read the object. A
 * grace period was set.
 */
void uslub_cache_free_rcu(struct uslub_cache *cache, void *object);

/**
 * As uslub_cache_free_rcu, for an object of the kmalloc family, of buckets or of any cache.
 *
 * The caller promises: As for uslub_cache_free_rcu.
 */
void uslub_kfree_rcu(void *object);

/**
 * Waits until all objects given to uslub_cache_free_rcu and uslub_kfree_rcu before are free.
 * It must not be called inside a read-side section.
 */
void uslub_rcu_barrier(void);

/**
 * Sets at least n objects (at least 1) of a cache aside. Then n calls of
 * uslub_cache_alloc_from succeed. Null with ENOMEM, and nothing is taken, if there is no memory.
 * Null with EINVAL, after a message, for 0 objects.
 *
 * The caller promises: The cache is not destroyed.
 */
struct uslub_sheaf *uslub_cache_prefill(struct uslub_cache *cache, uslub_gfp_t flags, size_t n);

/**
 * Refills a sheaf to at least n objects; may replace *sheaf. Returns 0. Returns -1 with ENOMEM
 * if there is no memory: then the sheaf has as many objects as before or more.
 *
 * The caller promises: *sheaf is a sheaf of this cache, and the cache is not destroyed.
 */
int uslub_cache_refill(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf **sheaf, size_t n);

/**
 * Takes an object that was set aside. Null with ENOMEM if none is left; it has no other source.
 *
 * The caller promises: sheaf is a sheaf of this cache.
 */
void *uslub_cache_alloc_from(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Returns a sheaf and the objects left in it; null is ignored.
 *
 * The caller promises: sheaf is a sheaf of this cache, and nobody uses it any longer.
 */
void uslub_cache_return(struct uslub_cache *cache, uslub_gfp_t flags, struct uslub_sheaf *sheaf);

/**
 * Number of objects in a sheaf; 0 for null.
 *
 * The caller promises: sheaf is null or a sheaf.
 */
size_t uslub_sheaf_size(const struct uslub_sheaf *sheaf);

/**
 * Registers a function that can free objects. It runs when an allocation of the cache (of any
 * cache, for null) would fail because there is no memory. Null with ENOMEM if there are 256
 * already. Null with EINVAL, after a message, if the function is missing.
 *
 * The caller promises: scan may be called with data, on any thread, until it is unregistered. It does not throw.
 */
struct uslub_shrinker *uslub_shrinker_register(struct uslub_cache *cache, uslub_scan_fn scan, void *data);

/**
 * Unregisters a shrinker; null is ignored. Afterwards the shrinker is not running, unless it is
 * itself the caller. Unregister a cache's shrinkers before you destroy the cache.
 *
 * The caller promises: shrinker is registered.
 */
void uslub_shrinker_unregister(struct uslub_shrinker *shrinker);

/**
 * Writes a line for each cache to a file descriptor, in the columns of /proc/slabinfo, version
 * 2.1. The classes of kmalloc are caches too. Returns 0. Returns -1 with EIO if a write failed.
 */
int uslub_slabinfo(int fd);

/**
 * Fills stats with the figures of a cache. Returns 0. Returns -1 with EINVAL, after a message,
 * if stats is null.
 *
 * The caller promises: The cache is not destroyed; stats can be written.
 */
int uslub_cache_get_stats(const struct uslub_cache *cache, struct uslub_cache_stats *stats);

/**
 * Reads a counter of a cache. Its name is that in /sys/kernel/slab/CACHE/, such as
 * alloc_fastpath. Returns 0. Returns -1 with EINVAL for an unknown name.
 *
 * The caller promises: The cache is not destroyed; item is a C string, value can be written.
 */
int uslub_cache_stat(const struct uslub_cache *cache, const char *item, uint64_t *value);

/**
 * As uslub_cache_stat, for one CPU; 0 for a CPU that never used a cache.
 *
 * The caller promises: As for uslub_cache_stat.
 */
int uslub_cache_stat_on(const struct uslub_cache *cache, const char *item, size_t cpu, uint64_t *value);

/**
 * Reads a setting of a cache by its name, such as sheaf_spill. Returns 0. Returns -1 with EINVAL
 * for a name that is no setting of a cache.
 *
 * The caller promises: The cache is not destroyed; name is a C string, value can be written.
 */
int uslub_cache_tuning(const struct uslub_cache *cache, const char *name, uint32_t *value);

/**
 * Writes all counters of a cache to a file descriptor, one line with name and value for each.
 * Returns 0. Returns -1 with EIO if a write failed.
 *
 * The caller promises: The cache is not destroyed.
 */
int uslub_cache_print_stats(const struct uslub_cache *cache, int fd);

/**
 * Fills totals with the figures of the library. Returns 0. Returns -1 with EINVAL, after a
 * message, if totals is null.
 *
 * The caller promises: totals can be written.
 */
int uslub_get_totals(struct uslub_totals *totals);

/**
 * Says how full the slab of an object is: used of its slots are in use, including objects in
 * sheaves. A program that moves its objects (active defragmentation) learns which ones to move. An
 * object of more than 8 KiB has its pages alone: 1 of 1. Takes no lock for other objects. Returns
 * 0. Returns -1 with EINVAL, after a message, if used or slots is null; without a message, if
 * no object is there.
 *
 * The caller promises: used and slots can be written.
 */
int uslub_slab_use(const void *object, unsigned int *used, unsigned int *slots);

/**
 * Gives as much memory back to the operating system as possible: flushes sheaves, and frees empty
 * slabs and free pages. Returns 1 if it gave memory back, otherwise 0.
 */
int uslub_trim(void);

/**
 * Checks all of the library's structures, for tests: no other thread may use the library
 * meanwhile. Returns 0 if they are consistent, otherwise 1, after a message.
 */
int uslub_check(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* USLUB_H */
