/*
 * Proves that threads leave nothing behind: 2000 short threads, 64 at a time,
 * each takes and frees some blocks, hands one on and frees the one it was
 * handed. Resident memory may grow by less than 64 MiB.
 *
 * By hand:  ./threads [THREADS (2000)]
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define AT_ONCE 64

struct gift {
    size_t n;
    uint64_t seed;
};

static _Atomic(struct gift *) hand;
static atomic_uint freed;

static void *nothing(void *argument)
{
    return argument;
}

static struct gift *wrap(uint64_t *random)
{
    size_t n = log_size(random, 16) + sizeof(struct gift);
    struct gift *g = hide(malloc(n));
    CHECK(g != NULL, "malloc(%zu)", n);
    g->n = n;
    g->seed = next_random(random);
    fill(g + 1, n - sizeof *g, g->seed);
    return g;
}

static void unwrap(struct gift *g)
{
    verify(g + 1, g->n - sizeof *g, g->seed, "gift");
    free(g);
}

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument * 2654435761u + 1;
    struct gift *mine[100];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++)
            mine[i] = wrap(&random);
        for (int i = 0; i < 100; i++)
            unwrap(mine[(i * 37) % 100]);
    }
    struct gift *from = atomic_exchange(&hand, wrap(&random));
    if (from != NULL) {
        unwrap(from);
        atomic_fetch_add(&freed, 1);
    }
    return NULL;
}

static void crowd(unsigned first, unsigned count, void *(*run)(void *))
{
    pthread_t thread[AT_ONCE];
    for (unsigned i = 0; i < count; i++)
        CHECK(pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(first + i + 1)) == 0,
              "pthread_create of thread %u", first + i);
    for (unsigned i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
    start();
    unsigned total = argc > 1 ? (unsigned)atoi(argv[1]) : 2000;
    crowd(0, AT_ONCE, nothing);
    long begin = status_kib("VmRSS:"), half = 0;
    for (unsigned i = 0; i < total; i += AT_ONCE) {
        crowd(i, total - i < AT_ONCE ? total - i : AT_ONCE, work);
        if (i <= total / 2)
            half = status_kib("VmRSS:");
    }
    unwrap(atomic_exchange(&hand, NULL));
    long end = status_kib("VmRSS:");
    CHECK(atomic_load(&freed) == total - 1, "%u gifts were freed, not %u", atomic_load(&freed), total - 1);
    say("threads: start %ld KiB, half way %ld, end %ld", begin, half, end);
    CHECK(end - begin < 64 * 1024, "resident memory grew by %ld KiB", end - begin);
    printf("threads: ok, %u, validate %s\n", total, validate());
    return 0;
}
