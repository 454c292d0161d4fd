/*
 * The kernel's names for uslub, so that kernel-style C compiles in user space as it stands.
 *
 * What differs from the kernel:
 *
 * - An object of a cache has at most 65536 bytes, a name at most 31.
 * - GFP_KERNEL may map memory, GFP_ATOMIC and GFP_NOWAIT may not; there are no emergency reserves.
 * - What only a kernel can do is accepted without effect: accounting to a cgroup, __GFP_NOWARN, reclaim
 *   accounting, usercopy windows.
 * - kfree_rcu and SLAB_TYPESAFE_BY_RCU wait as uslub_set_call_rcu said, which comes first.
 * - kmalloc has no upper bound, so kvmalloc is the same. Objects of a power of two bytes are aligned to
 *   their size up to 8192 bytes; larger ones begin a page.
 *
 * For C11 and later. <uslub.h> says more of every function behind these.
 */
#ifndef USLUB_SLAB_H
#define USLUB_SLAB_H

#ifdef __cplusplus
#error "<uslub/slab.h> is for C; <uslub.hpp> is for C++"
#endif

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <uslub.h>

/* ---- contexts ---- */

/** What an allocation may do to get its memory. */
typedef uslub_gfp_t gfp_t;

/** May map memory, and may wait for locks. */
#define GFP_KERNEL USLUB_GFP_KERNEL
/** May wait for locks, which are held briefly, but not map memory. */
#define GFP_ATOMIC USLUB_GFP_NOWAIT
/** The same: there are no reserves that would tell them apart. */
#define GFP_NOWAIT USLUB_GFP_NOWAIT
/** Waits for nothing at all: for signal handlers. */
#define GFP_NOSPIN USLUB_GFP_NOSPIN
/** As GFP_KERNEL: nothing of the file system or the block layer is below. */
#define GFP_NOIO GFP_KERNEL
#define GFP_NOFS GFP_KERNEL
#define GFP_USER GFP_KERNEL
#define GFP_KERNEL_ACCOUNT (GFP_KERNEL | __GFP_ACCOUNT)

/** The object's bytes are zero. */
#define __GFP_ZERO USLUB_GFP_ZERO
/** Tried again until it succeeds. */
#define __GFP_NOFAIL USLUB_GFP_NOFAIL
/** Memory of that node or none. */
#define __GFP_THISNODE USLUB_GFP_THISNODE
/** Accepted without effect: a failure says nothing anyway. */
#define __GFP_NOWARN ((gfp_t)0x10000)
/** Accepted without effect: there is nobody to account to. */
#define __GFP_ACCOUNT ((gfp_t)0x20000)
/** Accepted without effect: uslub tries once as it is. */
#define __GFP_NORETRY ((gfp_t)0x40000)
#define __GFP_RETRY_MAYFAIL ((gfp_t)0x80000)

/** No node in particular. */
#define NUMA_NO_NODE (-1)

/* ---- nothing ---- */

/** What an allocation of 0 bytes gives: no memory, but not NULL either. */
#define ZERO_SIZE_PTR ((void *)16)
/** Whether there is no memory behind a pointer. */
#define ZERO_OR_NULL_PTR(x) ((uintptr_t)(x) <= (uintptr_t)ZERO_SIZE_PTR)

/** Alignment of any object of kmalloc, in bytes. */
#define ARCH_KMALLOC_MINALIGN 8

/* ---- caches ---- */

/** A cache: objects of one size. */
struct kmem_cache;

/** What a cache is like. */
typedef unsigned int slab_flags_t;

/** Objects begin a cache line. */
#define SLAB_HWCACHE_ALIGN ((slab_flags_t)USLUB_CACHE_HWCACHE_ALIGN)
/** A freed object may be used again at once, but its slab stays one of this cache for a grace period. */
#define SLAB_TYPESAFE_BY_RCU ((slab_flags_t)USLUB_CACHE_TYPESAFE_BY_RCU)
/** A cache that cannot be created ends the process. */
#define SLAB_PANIC ((slab_flags_t)USLUB_CACHE_PANIC)
/** F: slab counters, freelists and pointers are checked. */
#define SLAB_CONSISTENCY_CHECKS ((slab_flags_t)USLUB_CACHE_CONSISTENCY_CHECKS)
/** Z: red zones on both sides of each object. */
#define SLAB_RED_ZONE ((slab_flags_t)USLUB_CACHE_RED_ZONE)
/** P: free objects and padding are filled with a pattern. */
#define SLAB_POISON ((slab_flags_t)USLUB_CACHE_POISON)
/** U: who allocated and who freed each object last. */
#define SLAB_STORE_USER ((slab_flags_t)USLUB_CACHE_STORE_USER)
/** T: a line for each allocation and each free. */
#define SLAB_TRACE ((slab_flags_t)USLUB_CACHE_TRACE)
/** A: the cache takes part in failslab. */
#define SLAB_FAILSLAB ((slab_flags_t)USLUB_CACHE_FAILSLAB)
/** The cache takes no flags from slab_debug. */
#define SLAB_NO_USER_FLAGS ((slab_flags_t)USLUB_CACHE_NO_USER_FLAGS)
/** Objects of different sizes, for uslub_cache_alloc_sized. */
#define SLAB_KMALLOC ((slab_flags_t)USLUB_CACHE_KMALLOC)
/** The cache shares its slabs with no other. */
#define SLAB_NO_MERGE ((slab_flags_t)0x10000)
/** Accepted without effect: there is nobody to account to. */
#define SLAB_ACCOUNT ((slab_flags_t)0x20000)
/** Accepted without effect: all free memory can be reclaimed. */
#define SLAB_RECLAIM_ACCOUNT ((slab_flags_t)0x40000)

/** What a cache is made of, beyond name and size. */
struct kmem_cache_args {
    /** Alignment of an object in bytes, a power of two; 0 for 8. */
    unsigned int align;
    /** Accepted without effect. */
    unsigned int useroffset;
    /** Accepted without effect. */
    unsigned int usersize;
    /** Accepted without effect: a free object's link never lies in bytes that readers look at. */
    unsigned int freeptr_offset;
    /** Accepted without effect. */
    bool use_freeptr_offset;
    /** Constructs an object of fresh memory; it must not allocate. */
    void (*ctor)(void *object);
    /** Objects a sheaf holds; 0 for what fits their size. */
    unsigned int sheaf_capacity;
};

/** A cache of arguments. */
static inline struct kmem_cache *uslub_kmem_cache_create_args_(const char *name, size_t size,
                                                               const struct kmem_cache_args *args,
                                                               slab_flags_t flags)
{
    struct uslub_cache_args plain = {
        .size = size,
        /* What is not known stays, and is refused. */
        .flags = flags & ~(SLAB_NO_MERGE | SLAB_ACCOUNT | SLAB_RECLAIM_ACCOUNT),
    };
    if (!(flags & SLAB_NO_MERGE))
        plain.flags |= USLUB_CACHE_MERGE;
    if (args) {
        plain.align = args->align;
        plain.ctor = args->ctor;
        plain.sheaf_capacity = args->sheaf_capacity;
    }
    return (struct kmem_cache *)uslub_cache_create(name, &plain);
}

/** A cache without arguments. */
static inline struct kmem_cache *uslub_kmem_cache_create_default_(const char *name, size_t size,
                                                                  const void *none, slab_flags_t flags)
{
    (void)none;
    return uslub_kmem_cache_create_args_(name, size, NULL, flags);
}

/** A cache by the older form. */
static inline struct kmem_cache *uslub_kmem_cache_create_old_(const char *name, size_t size, size_t align,
                                                              slab_flags_t flags, void (*ctor)(void *))
{
    struct kmem_cache_args args = { .align = (unsigned int)align, .ctor = ctor };
    return uslub_kmem_cache_create_args_(name, size, &args, flags);
}

/**
 * Creates a cache: kmem_cache_create(name, size, &args, flags), with NULL for no args, or
 * kmem_cache_create(name, size, align, flags, ctor). NULL with errno set, after a message.
 */
#define kmem_cache_create(name, size, args, ...)                            \
    _Generic((args),                                                        \
        struct kmem_cache_args *: uslub_kmem_cache_create_args_,            \
        const struct kmem_cache_args *: uslub_kmem_cache_create_args_,      \
        void *: uslub_kmem_cache_create_default_,                           \
        default: uslub_kmem_cache_create_old_)(name, size, args, __VA_ARGS__)

/** Creates a cache; the window for copies to and from user space has no effect. */
static inline struct kmem_cache *kmem_cache_create_usercopy(const char *name, unsigned int size,
                                                            unsigned int align, slab_flags_t flags,
                                                            unsigned int useroffset, unsigned int usersize,
                                                            void (*ctor)(void *))
{
    (void)useroffset;
    (void)usersize;
    return uslub_kmem_cache_create_old_(name, size, align, flags, ctor);
}

/** A cache for a struct, named like it. */
#define KMEM_CACHE(tag, flags) \
    uslub_kmem_cache_create_old_(#tag, sizeof(struct tag), _Alignof(struct tag), flags, NULL)
/** The same: the field's window has no effect. */
#define KMEM_CACHE_USERCOPY(tag, flags, field) \
    ((void)sizeof(((struct tag *)NULL)->field), KMEM_CACHE(tag, flags))

/** Destroys a cache; NULL is ignored. Objects in use are reported, and then it is kept. */
static inline void kmem_cache_destroy(struct kmem_cache *s)
{
    uslub_cache_destroy((struct uslub_cache *)s);
}

/** Allocates an object, or NULL. */
static inline void *kmem_cache_alloc(struct kmem_cache *s, gfp_t flags)
{
    return uslub_cache_alloc((struct uslub_cache *)s, flags);
}

/** Allocates a zeroed object, or NULL. */
static inline void *kmem_cache_zalloc(struct kmem_cache *s, gfp_t flags)
{
    return uslub_cache_zalloc((struct uslub_cache *)s, flags);
}

/** Allocates an object on a node, or NULL. */
static inline void *kmem_cache_alloc_node(struct kmem_cache *s, gfp_t flags, int node)
{
    return uslub_cache_alloc_node((struct uslub_cache *)s, flags, node);
}

/** Frees an object; NULL is ignored. */
static inline void kmem_cache_free(struct kmem_cache *s, void *object)
{
    uslub_cache_free((struct uslub_cache *)s, object);
}

/** Allocates `n` objects, all or none; returns `n` or 0. */
static inline int kmem_cache_alloc_bulk(struct kmem_cache *s, gfp_t flags, size_t n, void **objects)
{
    return (int)uslub_cache_alloc_bulk((struct uslub_cache *)s, flags, n, objects);
}

/** Frees `n` objects; of any cache, where `s` is NULL. */
static inline void kmem_cache_free_bulk(struct kmem_cache *s, size_t n, void **objects)
{
    if (s)
        uslub_cache_free_bulk((struct uslub_cache *)s, n, objects);
    else
        uslub_kfree_bulk(n, objects);
}

/** Gives empty slabs back; returns whether slabs remain. */
static inline int kmem_cache_shrink(struct kmem_cache *s)
{
    return uslub_cache_shrink((struct uslub_cache *)s);
}

/** Checks and repairs a debugged cache; returns the slabs looked at, -1 for a cache that is not debugged. */
static inline int kmem_cache_validate(struct kmem_cache *s)
{
    return uslub_cache_validate((struct uslub_cache *)s);
}

/** Bytes of an object. */
static inline unsigned int kmem_cache_size(struct kmem_cache *s)
{
    return (unsigned int)uslub_cache_size((const struct uslub_cache *)s);
}

/* ---- prefilled sheaves ---- */

/** Objects that are set aside for their holder. */
struct slab_sheaf;

/** Sets at least `n` objects aside; NULL when memory cannot be had, or for 0. */
static inline struct slab_sheaf *kmem_cache_prefill_sheaf(struct kmem_cache *s, gfp_t flags, unsigned int n)
{
    return n ? (struct slab_sheaf *)uslub_cache_prefill((struct uslub_cache *)s, flags, n) : NULL;
}

/** Fills a sheaf up to at least `n` objects; 0 or -ENOMEM. */
static inline int kmem_cache_refill_sheaf(struct kmem_cache *s, gfp_t flags, struct slab_sheaf **sheaf,
                                          unsigned int n)
{
    struct uslub_sheaf *filled = (struct uslub_sheaf *)*sheaf;
    int result = uslub_cache_refill((struct uslub_cache *)s, flags, &filled, n);
    *sheaf = (struct slab_sheaf *)filled;
    return result ? -ENOMEM : 0;
}

/** Takes an object out of a sheaf; NULL when there is none left. */
static inline void *kmem_cache_alloc_from_sheaf(struct kmem_cache *s, gfp_t flags, struct slab_sheaf *sheaf)
{
    return uslub_cache_alloc_from((struct uslub_cache *)s, flags, (struct uslub_sheaf *)sheaf);
}

/** Gives a sheaf back. */
static inline void kmem_cache_return_sheaf(struct kmem_cache *s, gfp_t flags, struct slab_sheaf *sheaf)
{
    uslub_cache_return((struct uslub_cache *)s, flags, (struct uslub_sheaf *)sheaf);
}

/** Objects in a sheaf. */
static inline unsigned int kmem_cache_sheaf_size(struct slab_sheaf *sheaf)
{
    return (unsigned int)uslub_sheaf_size((const struct uslub_sheaf *)sheaf);
}

/* ---- objects of any size ---- */

/** Allocates; NULL when memory cannot be had, ZERO_SIZE_PTR for 0 bytes. */
static inline void *kmalloc(size_t bytes, gfp_t flags)
{
    return bytes ? uslub_kmalloc(bytes, flags) : ZERO_SIZE_PTR;
}

/** The same, on a node. */
static inline void *kmalloc_node(size_t bytes, gfp_t flags, int node)
{
    return bytes ? uslub_kmalloc_node(bytes, flags, node) : ZERO_SIZE_PTR;
}

/** Allocates zeroed memory. */
static inline void *kzalloc(size_t bytes, gfp_t flags)
{
    return kmalloc(bytes, flags | __GFP_ZERO);
}

/** The same, on a node. */
static inline void *kzalloc_node(size_t bytes, gfp_t flags, int node)
{
    return kmalloc_node(bytes, flags | __GFP_ZERO, node);
}

/** Allocates an array; NULL also when the product is too large. */
static inline void *kmalloc_array(size_t n, size_t bytes, gfp_t flags)
{
    return n && bytes ? uslub_kmalloc_array(n, bytes, flags) : ZERO_SIZE_PTR;
}

/** The same, zeroed. */
static inline void *kcalloc(size_t n, size_t bytes, gfp_t flags)
{
    return kmalloc_array(n, bytes, flags | __GFP_ZERO);
}

/** Allocates without waiting for anything. */
static inline void *kmalloc_nolock(size_t bytes, gfp_t flags, int node)
{
    (void)node;
    return bytes ? uslub_kmalloc_nolock(bytes, flags) : ZERO_SIZE_PTR;
}

/** Frees; NULL and ZERO_SIZE_PTR are ignored. */
static inline void kfree(const void *object)
{
    if (!ZERO_OR_NULL_PTR(object))
        uslub_kfree((void *)(uintptr_t)object);
}

/** Frees without waiting for anything. */
static inline void kfree_nolock(const void *object)
{
    if (!ZERO_OR_NULL_PTR(object))
        uslub_kfree_nolock((void *)(uintptr_t)object);
}

/** Zeroes, then frees. */
static inline void kfree_sensitive(const void *object)
{
    if (!ZERO_OR_NULL_PTR(object))
        uslub_kfree_sensitive((void *)(uintptr_t)object);
}

/** Frees `n` objects of any cache. */
static inline void kfree_bulk(size_t n, void **objects)
{
    for (size_t i = 0; i < n; i++)
        kfree(objects[i]);
}

/** Bytes that may be used of an object; 0 for ZERO_SIZE_PTR and NULL. */
static inline size_t ksize(const void *object)
{
    return ZERO_OR_NULL_PTR(object) ? 0 : uslub_ksize(object);
}

/** Bytes that kmalloc of so many gives. */
static inline size_t kmalloc_size_roundup(size_t bytes)
{
    return uslub_kmalloc_size_roundup(bytes);
}

/** Changes a size; NULL when memory cannot be had, and then the object is as before. 0 bytes free it. */
static inline void *krealloc(const void *object, size_t bytes, gfp_t flags)
{
    if (!bytes) {
        kfree(object);
        return ZERO_SIZE_PTR;
    }
    if (ZERO_OR_NULL_PTR(object))
        return kmalloc(bytes, flags);
    return uslub_krealloc((void *)(uintptr_t)object, bytes, flags);
}

/** The same for an array; NULL also when the product is too large. */
static inline void *krealloc_array(const void *object, size_t n, size_t bytes, gfp_t flags)
{
    if (bytes && n > SIZE_MAX / bytes) {
        errno = ENOMEM;
        return NULL;
    }
    return krealloc(object, n * bytes, flags);
}

/** As kmalloc, which has no upper bound; so the whole family. */
static inline void *kvmalloc(size_t bytes, gfp_t flags)
{
    return kmalloc(bytes, flags);
}

/** As kmalloc_node. */
static inline void *kvmalloc_node(size_t bytes, gfp_t flags, int node)
{
    return kmalloc_node(bytes, flags, node);
}

/** As kzalloc. */
static inline void *kvzalloc(size_t bytes, gfp_t flags)
{
    return kzalloc(bytes, flags);
}

/** As kmalloc_array. */
static inline void *kvmalloc_array(size_t n, size_t bytes, gfp_t flags)
{
    return kmalloc_array(n, bytes, flags);
}

/** As kcalloc. */
static inline void *kvcalloc(size_t n, size_t bytes, gfp_t flags)
{
    return kcalloc(n, bytes, flags);
}

/** As krealloc. */
static inline void *kvrealloc(const void *object, size_t bytes, gfp_t flags)
{
    return krealloc(object, bytes, flags);
}

/** As kfree. */
static inline void kvfree(const void *object)
{
    kfree(object);
}

/** As kfree_sensitive, whatever the length. */
static inline void kvfree_sensitive(const void *object, size_t bytes)
{
    (void)bytes;
    kfree_sensitive(object);
}

/** A copy of a text; NULL for NULL. */
static inline char *kstrdup(const char *source, gfp_t flags)
{
    return uslub_kstrdup(source, flags);
}

/** A copy of at most `most` bytes of a text; NULL for NULL. */
static inline char *kstrndup(const char *source, size_t most, gfp_t flags)
{
    return uslub_kstrndup(source, most, flags);
}

/** A copy of bytes. */
static inline void *kmemdup(const void *source, size_t bytes, gfp_t flags)
{
    return bytes ? uslub_kmemdup(source, bytes, flags) : ZERO_SIZE_PTR;
}

/* ---- after a grace period ---- */

/** Frees after a grace period; `field` must be one of the object's, and is not used. */
#define kfree_rcu(object, field) ((void)sizeof((object)->field), kfree_rcu_mightsleep(object))
/** The same. */
#define kvfree_rcu(object, field) kfree_rcu(object, field)

/** Frees after a grace period, for which it waits itself where memory is short. */
static inline void kfree_rcu_mightsleep(const void *object)
{
    if (!ZERO_OR_NULL_PTR(object))
        uslub_kfree_rcu((void *)(uintptr_t)object);
}

/** The same. */
static inline void kvfree_rcu_mightsleep(const void *object)
{
    kfree_rcu_mightsleep(object);
}

/** Waits until all that was given to kfree_rcu before is free. */
static inline void kvfree_rcu_barrier(void)
{
    uslub_rcu_barrier();
}

/* ---- pools ---- */

/** A pool of elements, some of which are held in reserve. */
typedef struct uslub_mempool mempool_t;
/** Allocates an element, or returns NULL. */
typedef void *(mempool_alloc_t)(gfp_t flags, void *pool_data);
/** Frees an element. */
typedef void (mempool_free_t)(void *element, void *pool_data);

/** Elements of a cache, which is `pool_data`. */
static inline void *mempool_alloc_slab(gfp_t flags, void *pool_data)
{
    return kmem_cache_alloc((struct kmem_cache *)pool_data, flags);
}

/** Gives one back. */
static inline void mempool_free_slab(void *element, void *pool_data)
{
    kmem_cache_free((struct kmem_cache *)pool_data, element);
}

/** Elements of kmalloc, of `pool_data` bytes. */
static inline void *mempool_kmalloc(gfp_t flags, void *pool_data)
{
    return kmalloc((size_t)pool_data, flags);
}

/** Gives one back. */
static inline void mempool_kfree(void *element, void *pool_data)
{
    (void)pool_data;
    kfree(element);
}

/** Whether a number of elements makes sense; sets errno if not. */
static inline bool uslub_mempool_nr_(int min_nr)
{
    if (min_nr >= 0)
        return true;
    errno = EINVAL;
    return false;
}

/** Creates a pool of at least `min_nr` elements; NULL with errno set. */
static inline mempool_t *mempool_create(int min_nr, mempool_alloc_t *alloc_fn, mempool_free_t *free_fn,
                                        void *pool_data)
{
    return uslub_mempool_nr_(min_nr) ? uslub_mempool_create((size_t)min_nr, alloc_fn, free_fn, pool_data) : NULL;
}

/** The same; flags and node have no effect. */
static inline mempool_t *mempool_create_node(int min_nr, mempool_alloc_t *alloc_fn, mempool_free_t *free_fn,
                                             void *pool_data, gfp_t flags, int node)
{
    (void)flags;
    (void)node;
    return mempool_create(min_nr, alloc_fn, free_fn, pool_data);
}

/** Creates a pool of objects of a cache, which has no constructor. */
static inline mempool_t *mempool_create_slab_pool(int min_nr, struct kmem_cache *s)
{
    if (!uslub_mempool_nr_(min_nr))
        return NULL;
    return uslub_mempool_create_slab_pool((size_t)min_nr, (struct uslub_cache *)s);
}

/** Creates a pool of objects of `bytes`. */
static inline mempool_t *mempool_create_kmalloc_pool(int min_nr, size_t bytes)
{
    return uslub_mempool_nr_(min_nr) ? uslub_mempool_create_kmalloc_pool((size_t)min_nr, bytes) : NULL;
}

/** Allocates an element; never NULL with GFP_KERNEL. */
static inline void *mempool_alloc(mempool_t *pool, gfp_t flags)
{
    return uslub_mempool_alloc(pool, flags);
}

/** Allocates an element of the reserve, or NULL. */
static inline void *mempool_alloc_preallocated(mempool_t *pool)
{
    return uslub_mempool_alloc_preallocated(pool, GFP_KERNEL);
}

/** Fills the entries that are NULL, waiting for elements if need be; 0 or -errno. */
static inline int mempool_alloc_bulk(mempool_t *pool, void **elements, unsigned int count,
                                     unsigned int allocated)
{
    (void)allocated;
    return uslub_mempool_alloc_bulk(pool, GFP_KERNEL, count, elements) ? -errno : 0;
}

/** Frees an element; NULL is ignored. */
static inline void mempool_free(void *element, mempool_t *pool)
{
    if (element)
        uslub_mempool_free(pool, element);
}

/** Frees elements; returns how many went to the reserve, and so all are gone. */
static inline unsigned int mempool_free_bulk(mempool_t *pool, void **elements, unsigned int count)
{
    return (unsigned int)uslub_mempool_free_bulk(pool, count, elements);
}

/** Changes how many elements are reserved; 0 or -errno. */
static inline int mempool_resize(mempool_t *pool, int min_nr)
{
    if (!uslub_mempool_nr_(min_nr))
        return -EINVAL;
    return uslub_mempool_resize(pool, (size_t)min_nr) ? -errno : 0;
}

/** Destroys a pool; NULL is ignored. */
static inline void mempool_destroy(mempool_t *pool)
{
    uslub_mempool_destroy(pool);
}

/* ---- buckets ---- */

/** A set of size classes of one's own. */
typedef struct uslub_buckets kmem_buckets;

/** Creates a set, without a constructor; flags and window have no effect. NULL with errno set. */
static inline kmem_buckets *kmem_buckets_create(const char *name, slab_flags_t flags, unsigned int useroffset,
                                                unsigned int usersize, void (*ctor)(void *))
{
    (void)flags;
    (void)useroffset;
    (void)usersize;
    if (ctor) {
        errno = EINVAL;
        return NULL;
    }
    return uslub_buckets_create(name);
}

/** Allocates from a set, or NULL; freed by kfree. */
static inline void *kmem_buckets_alloc(kmem_buckets *buckets, size_t bytes, gfp_t flags)
{
    return bytes ? uslub_buckets_alloc(buckets, bytes, flags) : ZERO_SIZE_PTR;
}

/** The same. */
static inline void *kmem_buckets_valloc(kmem_buckets *buckets, size_t bytes, gfp_t flags)
{
    return kmem_buckets_alloc(buckets, bytes, flags);
}

/* ---- freeing at the end of a scope ---- */

/** Frees what a pointer's variable holds. */
static inline void uslub_free_kfree_(void *variable)
{
    void *object;
    memcpy(&object, variable, sizeof object);
    kfree(object);
}

/** The same. */
static inline void uslub_free_kvfree_(void *variable)
{
    uslub_free_kfree_(variable);
}

/** The same, after its bytes are zeroed. */
static inline void uslub_free_kfree_sensitive_(void *variable)
{
    void *object;
    memcpy(&object, variable, sizeof object);
    kfree_sensitive(object);
}

/** `T *p __free(kfree) = kmalloc(...);` frees `p` when its scope ends; so kvfree and kfree_sensitive. */
#define __free(how) __attribute__((__cleanup__(uslub_free_##how##_)))

/** The value of a variable with __free, which then holds NULL. */
#define no_free_ptr(variable)                       \
    (__extension__({                                \
        __typeof__(variable) uslub_value_ = (variable); \
        (variable) = NULL;                          \
        uslub_value_;                               \
    }))

#endif
