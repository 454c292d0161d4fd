/*
 * Proves: caches, bulk calls, sheaves and pools hold while threads pass objects to each other and the process
 * forks; and no object has two owners.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 400000, SLOTS = 256, FORKS = 30 };

static struct uslub_cache *cache;
static struct uslub_mempool *pool;
static void *slots[SLOTS];

/* An object bears its own address; nobody else writes to it. */
static void *mark(void *object)
{
    CHECK(object);
    *(void **)object = object;
    return object;
}

static void end(void *object)
{
    CHECK(*(void **)object == object);
    *(void **)object = NULL;
    uslub_cache_free(cache, object);
}

static void *work(void *seed)
{
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1103515245 + 12345;
        unsigned n = random >> 8;
        void *old = __atomic_exchange_n(&slots[n % SLOTS], mark(uslub_cache_alloc(cache, K)), __ATOMIC_ACQ_REL);
        if (old)
            end(old);
        if (n % 64 == 0) {
            void *batch[50];
            CHECK(uslub_cache_alloc_bulk(cache, K, 50, batch) == 50);
            for (int i = 0; i < 50; i++)
                mark(batch[i]);
            for (int i = 0; i < 50; i++)
                CHECK(*(void **)batch[i] == batch[i]);
            uslub_cache_free_bulk(cache, 50, batch);
        }
        if (n % 64 == 1) {
            struct uslub_sheaf *sheaf = uslub_cache_prefill(cache, K, 20);
            CHECK(sheaf);
            for (int i = 0; i < 20; i++)
                end(mark(uslub_cache_alloc_from(cache, USLUB_GFP_NOSPIN, sheaf)));
            uslub_cache_return(cache, K, sheaf);
        }
        if (n % 64 == 2) {
            void *element = uslub_mempool_alloc(pool, K);
            CHECK(element);
            memset(element, 5, 100);
            uslub_mempool_free(pool, element);
        }
        if (n % 1024 == 3)
            uslub_cache_shrink(cache);
        if (n % 64 == 4) {
            char *text = uslub_kstrdup("text", K);
            text = uslub_krealloc(text, n % 40000 + 5, K);
            CHECK(text && strcmp(text, "text") == 0);
            uslub_kfree(text);
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    cache = cache_of("passed", 96);
    pool = uslub_mempool_create_kmalloc_pool(2, 100);
    CHECK(pool);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int n = 0; n < 1000; n++)
                end(mark(uslub_cache_alloc(cache, K)));
            uslub_kfree(uslub_kzalloc(100000, K));
            uslub_trim();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i])
            end(slots[i]);
    CHECK(uslub_check() == 0);
    uslub_mempool_destroy(pool);
    CHECK(uslub_cache_destroy(cache) == 0);
    struct uslub_totals totals;
    uslub_trim();
    CHECK(uslub_get_totals(&totals) == 0);
    CHECK(totals.live == 0 && totals.cached == 0 && totals.dirty == 0);
    puts("all holds");
    return 0;
}
