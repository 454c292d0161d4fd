/*
 * Proves: the calls that wait for nothing may be made in a signal handler, whatever it interrupts.
 */
#include <signal.h>
#include <sys/time.h>

#include "check.h"

static struct uslub_cache *cache;
static volatile sig_atomic_t handled, served;

static void handler(int number)
{
    (void)number;
    int before = errno;
    void *object = uslub_cache_alloc(cache, USLUB_GFP_NOSPIN);
    if (object) {
        memset(object, 1, 128);
        served++;
    }
    uslub_cache_free_nolock(cache, object);
    void *other = uslub_kmalloc_nolock(100, USLUB_GFP_ZERO);
    uslub_kfree_nolock(other);
    handled++;
    errno = before;
}

int main(void)
{
    cache = cache_of("in handlers", 128);
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 100 }, { 0, 100 } };
    setitimer(ITIMER_REAL, &often, NULL);
    void *objects[500];
    while (handled < 3000) {
        for (int i = 0; i < 500; i++) {
            CHECK((objects[i] = uslub_cache_alloc(cache, K)));
            memset(objects[i], 2, 128);
        }
        uslub_cache_free_bulk(cache, 250, objects);
        for (int i = 250; i < 500; i++)
            uslub_cache_free(cache, objects[i]);
        uslub_cache_shrink(cache);
    }
    struct itimerval never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(served > 0);
    CHECK(uslub_check() == 0);
    CHECK(uslub_cache_destroy(cache) == 0);
    puts("all holds");
    return 0;
}
