/*
 * Proves: a thread that may not ask the system gets its objects from sheaves, also on a CPU on which no other call
 * has run. A producer allocates, a consumer frees; both are new threads. Slow paths are counted, not time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "check.h"

enum { OBJECTS = 200000, DEPTH = 4096 };

static struct uslub_cache *cache;
static struct uslub_mempool *pool;
static unsigned flags;
static void *ring[DEPTH];
static _Atomic long put, taken;

static void on_cpu(int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(n, &set);
    /* On one CPU alone both run there: the counts hold there too. */
    sched_setaffinity(0, sizeof set, &set);
}

static void *allocate(void)
{
    void *object = pool ? uslub_mempool_alloc(pool, flags) : uslub_cache_alloc(cache, flags);
    /* A refusal is no slow path: the caller falls back, as a kernel's caller does. */
    return object ? object : uslub_cache_alloc(cache, K);
}

static void *produce(void *unused)
{
    (void)unused;
    on_cpu(0);
    for (long n = 0; n < OBJECTS; n++) {
        while (n - taken >= DEPTH)
            sched_yield();
        ring[n % DEPTH] = allocate();
        CHECK(ring[n % DEPTH]);
        put = n + 1;
    }
    return NULL;
}

static void *consume(void *unused)
{
    (void)unused;
    on_cpu(1);
    for (long n = 0; n < OBJECTS; n++) {
        while (put <= n)
            sched_yield();
        if (pool)
            uslub_mempool_free(pool, ring[n % DEPTH]);
        else
            uslub_cache_free(cache, ring[n % DEPTH]);
        taken = n + 1;
    }
    return NULL;
}

static double stat_of(const char *item)
{
    uint64_t value;
    CHECK(uslub_cache_stat(cache, item, &value) == 0);
    return value;
}

int main(int argc, char **argv)
{
    /* cold CONTEXT CPU: where the first calls, which may ask the system, run. */
    CHECK(argc == 3);
    on_cpu(atoi(argv[2]));
    cache = cache_of("bio", 256);
    static void *first[2 * DEPTH];
    CHECK(uslub_cache_alloc_bulk(cache, K, 2 * DEPTH, first) == 2 * DEPTH);
    uslub_cache_free_bulk(cache, 2 * DEPTH, first);
    flags = USLUB_GFP_NOWAIT;
    if (strcmp(argv[1], "nospin") == 0)
        flags = USLUB_GFP_NOSPIN;
    if (strcmp(argv[1], "mempool") == 0) {
        flags = K;
        CHECK((pool = uslub_mempool_create_slab_pool(2, cache)));
    }
    double slow = stat_of("alloc_slowpath");
    pthread_t threads[2];
    taken = put = 0;
    CHECK(pthread_create(&threads[0], NULL, produce, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, consume, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    slow = (stat_of("alloc_slowpath") - slow) / OBJECTS;
    printf("cold: %.4f of the objects from slabs\n", slow);
    CHECK(slow < 0.05);
    return 0;
}
