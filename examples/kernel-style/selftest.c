/*
 * Kernel-style C in user space: every call of <uslub/slab.h> once, with what it must give.
 *
 *   cc -std=c11 -o selftest selftest.c $(pkg-config --cflags --libs uslub)
 */
#include <stdio.h>

#include <uslub/slab.h>

static int failures;

#define EXPECT(holds)                                                  \
    do {                                                               \
        if (!(holds)) {                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds); \
            failures++;                                                \
        }                                                              \
    } while (0)

struct inode {
    unsigned long number;
    int links;
    char name[40];
    void *rcu[2];
};

static void inode_init_once(void *object)
{
    struct inode *inode = object;
    inode->links = 1;
}

static bool all_zero(const void *object, size_t bytes)
{
    const char *at = object;
    while (bytes--)
        if (*at++)
            return false;
    return true;
}

static void caches(void)
{
    struct kmem_cache_args args = { .align = 64, .sheaf_capacity = 16, .ctor = inode_init_once };
    struct kmem_cache *by_args = kmem_cache_create("inode_args", sizeof(struct inode), &args, SLAB_HWCACHE_ALIGN);
    struct kmem_cache *by_none = kmem_cache_create("inode_none", sizeof(struct inode), NULL, SLAB_PANIC);
    struct kmem_cache *by_old = kmem_cache_create("inode_old", sizeof(struct inode), 0,
                                                  SLAB_RECLAIM_ACCOUNT | SLAB_ACCOUNT, inode_init_once);
    struct kmem_cache *usercopy = kmem_cache_create_usercopy("inode_usercopy", sizeof(struct inode), 8, 0, 16, 40,
                                                             NULL);
    struct kmem_cache *by_struct = KMEM_CACHE(inode, SLAB_NO_MERGE);
    struct kmem_cache *by_field = KMEM_CACHE_USERCOPY(inode, 0, name);
    EXPECT(by_args && by_none && by_old && usercopy && by_struct && by_field);
    EXPECT(usercopy == by_none && by_field == by_none); /* merged, as in the kernel */
    EXPECT(by_struct != by_none);                       /* SLAB_NO_MERGE */
    EXPECT(kmem_cache_size(by_struct) == sizeof(struct inode));

    struct inode *inode = kmem_cache_alloc(by_args, GFP_KERNEL | __GFP_NOWARN);
    EXPECT(inode && (uintptr_t)inode % 64 == 0 && inode->links == 1);
    kmem_cache_free(by_args, inode);
    inode = kmem_cache_alloc_node(by_old, GFP_KERNEL, NUMA_NO_NODE);
    EXPECT(inode && inode->links == 1);
    kmem_cache_free(by_old, inode);
    inode = kmem_cache_alloc_node(by_struct, GFP_KERNEL | __GFP_THISNODE, 0);
    memset(inode, 0xff, sizeof *inode);
    kmem_cache_free(by_struct, inode);
    inode = kmem_cache_zalloc(by_struct, GFP_NOWAIT | __GFP_ACCOUNT);
    EXPECT(inode && all_zero(inode, sizeof *inode));
    kmem_cache_free(by_struct, inode);
    kmem_cache_free(by_struct, NULL);

    void *bulk[100];
    EXPECT(kmem_cache_alloc_bulk(by_struct, GFP_KERNEL | __GFP_ZERO, 100, bulk) == 100);
    for (int i = 0; i < 100; i++)
        EXPECT(all_zero(bulk[i], sizeof(struct inode)));
    kmem_cache_free_bulk(by_struct, 50, bulk);
    kmem_cache_free_bulk(NULL, 50, bulk + 50); /* of any cache */
    EXPECT(kmem_cache_shrink(by_struct) == 0);

    struct slab_sheaf *sheaf = kmem_cache_prefill_sheaf(by_struct, GFP_KERNEL, 5);
    EXPECT(sheaf && kmem_cache_sheaf_size(sheaf) >= 5);
    EXPECT(kmem_cache_prefill_sheaf(by_struct, GFP_KERNEL, 0) == NULL);
    for (int i = 0; i < 5; i++)
        EXPECT((bulk[i] = kmem_cache_alloc_from_sheaf(by_struct, GFP_NOSPIN, sheaf)) != NULL);
    EXPECT(kmem_cache_refill_sheaf(by_struct, GFP_KERNEL, &sheaf, 400) == 0);
    EXPECT(kmem_cache_sheaf_size(sheaf) >= 400);
    kmem_cache_return_sheaf(by_struct, GFP_KERNEL, sheaf);
    kfree_bulk(5, bulk);

    struct kmem_cache *all[] = { by_args, by_none, by_old, usercopy, by_struct, by_field };
    for (int i = 0; i < 6; i++)
        kmem_cache_destroy(all[i]);
    kmem_cache_destroy(NULL);
}

static void sizes(void)
{
    /* A volatile size: the compiler shall not reason about our kmalloc. */
    volatile size_t huge = SIZE_MAX / 2;
    EXPECT(kmalloc(0, GFP_KERNEL) == ZERO_SIZE_PTR && ksize(ZERO_SIZE_PTR) == 0 && ZERO_OR_NULL_PTR(NULL));
    EXPECT(kmalloc_array(0, 8, GFP_KERNEL) == ZERO_SIZE_PTR && kcalloc(8, 0, GFP_KERNEL) == ZERO_SIZE_PTR);
    kfree(ZERO_SIZE_PTR);
    kfree(NULL);
    EXPECT(kmalloc(huge + 10, GFP_KERNEL) == NULL && kmalloc_array(huge, 4, GFP_KERNEL) == NULL);
    EXPECT(kcalloc(huge, 4, GFP_KERNEL) == NULL && krealloc_array(NULL, huge, 4, GFP_KERNEL) == NULL);

    char *text = kmalloc(100, GFP_KERNEL);
    EXPECT(text && ksize(text) == kmalloc_size_roundup(100) && (uintptr_t)text % ARCH_KMALLOC_MINALIGN == 0);
    strcpy(text, "kept");
    text = krealloc(text, 5000, GFP_KERNEL);
    EXPECT(text && strcmp(text, "kept") == 0);
    text = krealloc_array(text, 100, 100, GFP_KERNEL);
    EXPECT(text && strcmp(text, "kept") == 0);
    EXPECT(krealloc(text, 0, GFP_KERNEL) == ZERO_SIZE_PTR);
    text = krealloc(ZERO_SIZE_PTR, 10, GFP_KERNEL);
    kfree_sensitive(text);

    /* Zeroes reach as far as one ever asks for. */
    text = kzalloc(1, GFP_KERNEL);
    for (size_t bytes = 2; bytes < 20000; bytes += bytes / 2) {
        text = krealloc(text, bytes, GFP_KERNEL | __GFP_ZERO);
        EXPECT(text && all_zero(text, bytes));
    }
    kfree(text);

    void *several[] = { kmalloc(8, GFP_ATOMIC | __GFP_NOFAIL), kzalloc_node(16, GFP_KERNEL, NUMA_NO_NODE),
                        kmalloc_node(700, GFP_KERNEL, 0), kcalloc(3, 5, GFP_NOIO),
                        kmalloc_array(7, 7, GFP_NOFS), kmemdup("memory", 7, GFP_KERNEL),
                        kstrdup("text", GFP_USER), kstrndup("text", 2, GFP_KERNEL_ACCOUNT) };
    EXPECT(strcmp(several[5], "memory") == 0 && strcmp(several[6], "text") == 0 && strcmp(several[7], "te") == 0);
    EXPECT(kstrdup(NULL, GFP_KERNEL) == NULL);
    kfree_bulk(8, several);

    void *quiet = kmalloc_nolock(64, __GFP_ZERO, NUMA_NO_NODE); /* may be NULL: nothing was waited for */
    EXPECT(!quiet || all_zero(quiet, 64));
    kfree_nolock(quiet);

    char *large = kvmalloc(3 << 20, GFP_KERNEL | __GFP_NORETRY), *zero = kvzalloc(3 << 20, GFP_KERNEL);
    EXPECT(large && zero && all_zero(zero, 3 << 20));
    large = kvrealloc(large, 4 << 20, GFP_KERNEL);
    kvfree(large);
    kvfree_sensitive(zero, 3 << 20);
    kvfree(kvmalloc_array(10, 10, GFP_KERNEL));
    kvfree(kvcalloc(10, 10, GFP_KERNEL));
    kvfree(kvmalloc_node(10, GFP_KERNEL | __GFP_RETRY_MAYFAIL, 0));
}

static void *scoped(void)
{
    char *gone __free(kfree) = kmalloc(10, GFP_KERNEL);
    char *secret __free(kfree_sensitive) = kstrdup("secret", GFP_KERNEL);
    void *array __free(kvfree) = kvzalloc(10, GFP_KERNEL);
    char *kept __free(kfree) = kstrdup("kept", GFP_KERNEL);
    EXPECT(gone && secret && array);
    return no_free_ptr(kept);
}

static void pools(void)
{
    struct kmem_cache *bios = kmem_cache_create("bio", 120, NULL, SLAB_NO_MERGE);
    mempool_t *by_hand = mempool_create(4, mempool_alloc_slab, mempool_free_slab, bios);
    mempool_t *on_node = mempool_create_node(2, mempool_kmalloc, mempool_kfree, (void *)200, GFP_KERNEL, 0);
    mempool_t *of_slab = mempool_create_slab_pool(4, bios), *of_sizes = mempool_create_kmalloc_pool(3, 1000);
    EXPECT(by_hand && on_node && of_slab && of_sizes);
    EXPECT(mempool_create_kmalloc_pool(-1, 10) == NULL);
    mempool_t *pools[] = { by_hand, on_node, of_slab, of_sizes };
    for (int i = 0; i < 4; i++) {
        void *element = mempool_alloc(pools[i], GFP_NOIO), *reserved = mempool_alloc_preallocated(pools[i]);
        EXPECT(element && reserved);
        mempool_free(element, pools[i]);
        mempool_free(reserved, pools[i]);
        EXPECT(mempool_resize(pools[i], 8) == 0);
        void *bulk[8] = { NULL };
        EXPECT(mempool_alloc_bulk(pools[i], bulk, 8, 0) == 0 && bulk[0] && bulk[7]);
        EXPECT(mempool_free_bulk(pools[i], bulk, 8) <= 8);
    }
    EXPECT(mempool_resize(of_slab, -1) == -EINVAL);
    for (int i = 0; i < 4; i++)
        mempool_destroy(pools[i]);
    mempool_destroy(NULL);
    mempool_free(NULL, NULL);
    kmem_cache_destroy(bios);
}

/* With one thread that reads nothing, every moment is a grace period. */
static void call_at_once(struct rcu_head *head, void (*func)(struct rcu_head *))
{
    func(head);
}

static void no_wait(void)
{
}

static void after_a_grace_period(void)
{
    EXPECT(uslub_set_call_rcu(call_at_once, no_wait, no_wait) == 0);
    struct kmem_cache *typesafe = kmem_cache_create("typesafe", 64, NULL, SLAB_TYPESAFE_BY_RCU);
    kmem_cache_free(typesafe, kmem_cache_alloc(typesafe, GFP_KERNEL));
    struct inode *inode = kmalloc(sizeof *inode, GFP_KERNEL), *other = kmalloc(sizeof *other, GFP_KERNEL);
    kfree_rcu(inode, rcu);
    kvfree_rcu(other, rcu);
    kfree_rcu_mightsleep(kmem_cache_alloc(typesafe, GFP_KERNEL));
    kvfree_rcu_mightsleep(kvmalloc(1 << 20, GFP_KERNEL));
    kvfree_rcu_barrier();
    kmem_cache_destroy(typesafe);
}

int main(void)
{
    caches();
    sizes();
    kfree(scoped());
    pools();
    after_a_grace_period();
    kmem_buckets *names = kmem_buckets_create("names", 0, 0, 0, NULL);
    kfree(kmem_buckets_alloc(names, 77, GFP_KERNEL));
    kvfree(kmem_buckets_valloc(names, 77777, GFP_KERNEL));
    EXPECT(names && kmem_buckets_alloc(names, 0, GFP_KERNEL) == ZERO_SIZE_PTR);
    EXPECT(uslub_check() == 0);
    puts(failures ? "not all holds" : "all holds");
    return failures != 0;
}
