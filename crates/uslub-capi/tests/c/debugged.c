/*
 * Proves: the kernel's slub_kunit cases give the kernel's numbers of errors from C, and the SLAB_
 * flags of slab.h do what the letters of slab_debug do. Runs with slab_debug_fatal=0.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include <uslub/slab.h>

static unsigned errors(struct kmem_cache *cache)
{
    unsigned before = uslub_debug_errors();
    CHECK(kmem_cache_validate(cache) >= 1);
    return uslub_debug_errors() - before;
}

static struct kmem_cache *make(const char *name, size_t size, slab_flags_t flags)
{
    struct kmem_cache *cache = kmem_cache_create(name, size, 0, flags | SLAB_NO_USER_FLAGS, NULL);
    CHECK(cache);
    return cache;
}

static void red_zones(void)
{
    struct kmem_cache *cache = make("TestSlub_RZ_alloc", 64, SLAB_RED_ZONE);
    volatile uint8_t *p = kmem_cache_alloc(cache, GFP_KERNEL);
    p[64] = 0x12;
    CHECK(errors(cache) == 2 && errors(cache) == 0);
    kmem_cache_free(cache, (void *)p);
    p[64] = 0x12;
    CHECK(errors(cache) == 2 && errors(cache) == 0);
    kmem_cache_destroy(cache);
}

static void poison(void)
{
    struct kmem_cache *cache = make("TestSlub_poison", 64, SLAB_POISON);
    volatile uint8_t *p = kmem_cache_alloc(cache, GFP_KERNEL);
    CHECK(p[0] == 0x6b && p[63] == 0xa5);
    kmem_cache_free(cache, (void *)p);
    p[0] = 0x78;
    CHECK(errors(cache) == 2);
    p[50] = 0x9a;
    CHECK(errors(cache) == 2 && errors(cache) == 0);
    /* The link lies behind the object. */
    uint8_t link = p[64];
    p[64] = (uint8_t)~link;
    CHECK(errors(cache) == 3);
    kmem_cache_destroy(cache);
}

static void sizes(void)
{
    slab_flags_t flags = SLAB_KMALLOC | SLAB_STORE_USER | SLAB_RED_ZONE;
    struct kmem_cache *cache = make("TestSlub_kmalloc", 64, flags);
    volatile uint8_t *p = uslub_cache_alloc_sized((struct uslub_cache *)cache, GFP_KERNEL, 18);
    CHECK(ksize((void *)p) == 18);
    p[18] = p[19] = 0xab;
    CHECK(errors(cache) == 2 && errors(cache) == 0);
    kmem_cache_free(cache, (void *)p);
    p = uslub_cache_alloc_sized((struct uslub_cache *)cache, GFP_KERNEL, 48);
    memset((void *)p, 0xff, 48);
    p = krealloc((void *)p, 40, GFP_KERNEL | __GFP_ZERO);
    for (int i = 40; i < 64; i++)
        CHECK(p[i] == 0xcc);
    p = krealloc((void *)p, 56, GFP_KERNEL | __GFP_ZERO);
    for (int i = 40; i < 64; i++)
        CHECK(p[i] == (i < 56 ? 0 : 0xcc));
    CHECK(errors(cache) == 0);
    p = krealloc((void *)p, 112, GFP_KERNEL | __GFP_ZERO);
    for (int i = 0; i < 112; i++)
        CHECK(p[i] == (i < 40 ? 0xff : 0));
    kfree((void *)p);
    kmem_cache_destroy(cache);
}

static void leak(void)
{
    struct kmem_cache *cache = make("TestSlub_leak", 64, SLAB_STORE_USER | SLAB_NO_MERGE);
    CHECK(kmem_cache_alloc(cache, GFP_KERNEL));
    unsigned before = uslub_debug_errors();
    kmem_cache_destroy(cache);
    CHECK(uslub_debug_errors() - before == 2);
}

static void misuse_is_found(void)
{
    struct kmem_cache *cache = make("found", 64, SLAB_CONSISTENCY_CHECKS | SLAB_STORE_USER);
    char *p = kmem_cache_alloc(cache, GFP_KERNEL);
    kmem_cache_free(cache, p);
    unsigned before = uslub_debug_errors();
    kmem_cache_free(cache, p);
    CHECK(uslub_debug_errors() - before == 2);
    CHECK(uslub_dump_object(p, 1) == 1 && uslub_dump_object(&p, 1) == 0);
    CHECK(uslub_cache_traces((struct uslub_cache *)cache, 0, 1) == 0);
    struct uslub_cache *plain = (struct uslub_cache *)make("plain", 64, 0);
    CHECK(uslub_cache_validate(plain) == -1);
    CHECK(uslub_cache_set_debug((struct uslub_cache *)cache, SLAB_POISON) == -1);
    CHECK(uslub_cache_set_debug((struct uslub_cache *)cache, SLAB_CONSISTENCY_CHECKS | SLAB_TRACE) == 0);
    p = kmem_cache_alloc(cache, GFP_KERNEL);
    CHECK(uslub_cache_set_debug((struct uslub_cache *)cache, 0) == 0);
    kmem_cache_free(cache, p);
    CHECK(uslub_fail_nth(1) == -1);
}

static void classes_are_switched(void)
{
    char *old[100];
    for (int i = 0; i < 100; i++)
        CHECK((old[i] = kmalloc(40, GFP_KERNEL)));
    CHECK(uslub_kmalloc_set_debug("FZPU,kmalloc-48") == 0);
    volatile char *p = kmalloc(40, GFP_KERNEL);
    CHECK(p[3] == 0x6b && ksize((void *)p) == 40);
    for (int i = 0; i < 100; i++)
        kfree(old[i]);
    unsigned before = uslub_debug_errors();
    p[40] = 0x12;
    kfree((void *)p);
    /* The report, the bytes that are restored, and the object that is not freed. */
    CHECK(uslub_debug_errors() - before == 3);
    CHECK(uslub_kmalloc_set_debug("FQ") == -1 && errno == EINVAL);
    CHECK(uslub_kmalloc_set_debug("F,session") == -1 && errno == EINVAL);
    CHECK(uslub_kmalloc_set_debug(NULL) == -1 && errno == EINVAL);
    CHECK(uslub_kmalloc_set_debug("-") == 0);
    p = kmalloc(40, GFP_KERNEL);
    CHECK(ksize((void *)p) == 48);
    kfree((void *)p);
}

int main(void)
{
    red_zones();
    poison();
    sizes();
    leak();
    misuse_is_found();
    classes_are_switched();
    return 0;
}
