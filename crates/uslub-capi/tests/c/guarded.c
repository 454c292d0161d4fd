/*
 * Proves: with guard=1000, objects of caches and of kmalloc are guarded in C too; every free takes
 * them, and a use after the free is reported. Runs with guard_recover=1.
 */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include <uslub/slab.h>

enum { SIZE = 40, MANY = 64 };

/* A guarded object knows its exact size. */
static uint8_t *guarded_kmalloc(void)
{
    for (int round = 0; round < 5000; round++) {
        for (int i = 0; i < 500; i++) {
            uint8_t *p = kmalloc(SIZE, GFP_KERNEL);
            CHECK(p);
            if (ksize(p) == SIZE)
                return p;
        }
        usleep(1000);
    }
    CHECK(!"no object was guarded");
    return NULL;
}

/* The pool lies far from all slabs. */
static uint8_t *guarded(struct kmem_cache *cache)
{
    static void *plain[500];
    for (int round = 0; round < 5000; round++) {
        uint8_t *found = NULL;
        uintptr_t near = (uintptr_t)kmalloc(20000, GFP_KERNEL);
        size_t n = 0;
        while (n < 500 && !found) {
            uint8_t *p = kmem_cache_alloc(cache, GFP_KERNEL);
            uintptr_t distance = (uintptr_t)p > near ? (uintptr_t)p - near : near - (uintptr_t)p;
            CHECK(p);
            if (distance > (uintptr_t)1 << 36)
                found = p;
            else
                plain[n++] = p;
        }
        kmem_cache_free_bulk(cache, n, plain);
        if (found)
            return found;
        kmem_cache_shrink(cache);
        usleep(1000);
    }
    CHECK(!"no object was guarded");
    return NULL;
}

int main(void)
{
    struct kmem_cache *cache = kmem_cache_create("herbs", SIZE, 0, 0, NULL);
    CHECK(cache);
    unsigned before = uslub_debug_errors();

    /* Right: each free, one by one and among others. */
    void *many[MANY];
    for (int i = 0; i < MANY; i++) {
        many[i] = i % 16 == 0 ? guarded(cache) : kmem_cache_alloc(cache, GFP_KERNEL);
        memset(many[i], i, SIZE);
    }
    kmem_cache_free_bulk(cache, MANY, many);
    kfree(guarded(cache));
    uint8_t *p = krealloc(memset(guarded_kmalloc(), 7, SIZE), 500, GFP_KERNEL);
    CHECK(p[0] == 7 && p[SIZE - 1] == 7);
    kfree_sensitive(p);
    uint8_t *z = kzalloc(SIZE, GFP_KERNEL);
    for (int i = 0; i < SIZE; i++)
        CHECK(z[i] == 0);
    kfree(z);
    CHECK(uslub_debug_errors() == before);

    /* Wrong, and reported. */
    volatile uint8_t *q = guarded(cache);
    kmem_cache_free(cache, (void *)q);
    q[3] = 1;
    CHECK(uslub_debug_errors() == before + 1);
    kmem_cache_free(cache, (void *)q);
    CHECK(uslub_debug_errors() == before + 2);
    q = guarded_kmalloc();
    kfree((void *)(q + 16));
    CHECK(uslub_debug_errors() == before + 3);
    kfree((void *)q);
    kmem_cache_destroy(cache);
    return 0;
}
