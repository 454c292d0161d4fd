/*
 * Proves that memory goes back to the system: after 300 MB of mixed sizes
 * (16 B … 200 KiB, all touched) are taken and freed, resident memory must be
 * within 2 MiB of the start:
 *
 *   rss trim [THREADS]    at once after malloc_trim(0)
 *   rss idle [THREADS]    after 5 s without any call (uslub's helper thread)
 *   rss calls [THREADS]   within 10 s in which a few blocks come and go, as decay
 *                         of empty pages rides on later calls where there is no
 *                         helper; 48 MiB are granted, as nobody drains sheaves
 *                         then, and each object in them keeps its slab
 *
 * (glibc keeps up to 7 blocks of each small size and is granted 4 MiB.)
 *
 * THREADS 1 (default) means the main thread. Other threads have small stacks
 * and have ended before anything is measured; the start is measured after as
 * many idle threads have come and gone, for libc keeps their stacks.
 */
#include "common.h"
#include <pthread.h>

#define TOTAL ((size_t)300 * 1000 * 1000)
#define MOST 400000 /* blocks of all threads; their table is not malloc's */

struct part {
    unsigned index, threads;
    unsigned count;
};

static void *table[MOST];
static long peak_kib;
static pthread_barrier_t all_taken;

/* Half of the blocks are below 1 KiB, bytes are mostly in large ones. */
static size_t pick(uint64_t *random)
{
    size_t n = log_size(random, next_random(random) % 2 ? 10 : 17) + 15;
    return next_random(random) % 64 == 0 ? n % 200000 + 4800 : n;
}

static void *nothing(void *argument)
{
    return argument;
}

static void *take_and_give(void *argument)
{
    struct part *part = argument;
    uint64_t random = part->index * 7919 + 12345;
    size_t bytes = 0, limit = MOST / part->threads;
    void **mine = table + part->index * limit;
    while (bytes < TOTAL / part->threads && part->count < limit) {
        size_t n = pick(&random);
        void *p = hide(malloc(n));
        CHECK(p != NULL, "malloc(%zu)", n);
        memset(p, (int)n, n);
        mine[part->count++] = p;
        bytes += n;
    }
    pthread_barrier_wait(&all_taken);
    if (part->index == 0)
        peak_kib = status_kib("VmRSS:");
    pthread_barrier_wait(&all_taken);
    /* freed in another order than taken */
    for (unsigned i = part->count; i > 1; i--) {
        unsigned k = (unsigned)(next_random(&random) % i);
        void *swap = mine[i - 1];
        mine[i - 1] = mine[k];
        mine[k] = swap;
    }
    for (unsigned i = 0; i < part->count; i++)
        free(mine[i]);
    return NULL;
}

static void in_threads(unsigned threads, void *(*run)(void *), struct part *parts)
{
    pthread_t thread[64];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    for (unsigned t = 0; t < threads; t++)
        CHECK(pthread_create(&thread[t], &attributes, run, &parts[t]) == 0, "pthread_create");
    for (unsigned t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);
    pthread_attr_destroy(&attributes);
}

static void few_calls(void)
{
    uint64_t random = 99;
    void *p[16];
    for (int i = 0; i < 16; i++) {
        size_t n = i == 0 ? 300000 : pick(&random);
        p[i] = hide(malloc(n));
        memset(p[i], 1, n);
    }
    for (int i = 0; i < 16; i++)
        free(p[i]);
}

int main(int argc, char **argv)
{
    start();
    const char *mode = argc > 1 ? argv[1] : "trim";
    unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    CHECK(threads >= 1 && threads <= 64, "1 to 64 threads");
    if (strcmp(mode, "trim") != 0 && !on_uslub()) {
        say("rss: skipped: mode %s needs uslub", mode);
        return 0;
    }
    struct part parts[64];
    for (unsigned t = 0; t < threads; t++)
        parts[t] = (struct part){t, threads, 0};

    pthread_barrier_init(&all_taken, NULL, threads);
    memset(table, 1, sizeof table); /* resident before the start is measured */
    if (threads > 1)
        in_threads(threads, nothing, parts);
    long begin = status_kib("VmRSS:");
    int64_t t0 = now_ms();
    if (threads > 1)
        in_threads(threads, take_and_give, parts);
    else
        take_and_give(&parts[0]);
    long freed = status_kib("VmRSS:"), granted = on_uslub() ? 2048 : 4096, now = freed;
    CHECK(peak_kib > begin + 280000, "only %ld KiB at the peak", peak_kib);

    int64_t t1 = now_ms();
    if (strcmp(mode, "trim") == 0) {
        malloc_trim(0);
        now = status_kib("VmRSS:");
    } else if (strcmp(mode, "idle") == 0) {
        sleep_ms(5000);
        now = status_kib("VmRSS:");
    } else if (strcmp(mode, "calls") == 0) {
        granted = 48 * 1024;
        do {
            few_calls();
            sleep_ms(10);
            now = status_kib("VmRSS:");
        } while (now > begin + granted && now_ms() - t1 < 10000);
    } else {
        FAIL("unknown mode %s", mode);
    }
    int64_t t2 = now_ms();
    say("rss: %s, %u threads: start %ld KiB, peak %ld, freed %ld, then %ld (%+ld); %ld ms work, %ld ms wait",
        mode, threads, begin, peak_kib, freed, now, now - begin, (long)(t1 - t0), (long)(t2 - t1));
    CHECK(now <= begin + granted, "%ld KiB stay resident, %ld are granted", now - begin, granted);
    printf("rss: ok, %s, %u threads, validate %s\n", mode, threads, validate());
    return 0;
}
