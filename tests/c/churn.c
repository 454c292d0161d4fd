/*
 * Proves that memory does not grow with time: threads that come and go keep so many bytes live in blocks of all
 * sizes (1 B to 4 MiB, every power of two, by every call), each with a pattern that is verified before it goes. Once so
 * many bytes are live the sum stays; what a thread leaves when it ends, the next one takes over and frees. Resident
 * memory is sampled; its mean over the last 24th of the time may differ from that after the first twelfth by 10 %,
 * in less than a minute by 25 %.
 *
 * By hand:  ./churn [SECONDS (20) [LIVE MIB (96) [THREADS (6)]]]
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define MAX_THREADS 64
#define MOST 60000 /* blocks of one estate */
#define WHOLE 16384 /* larger blocks are filled and verified page by page */

struct block {
    unsigned char *p;
    size_t n;
    uint64_t seed;
};

/* What a thread has, and its successor takes over. */
struct estate {
    pthread_t thread;
    atomic_int done;
    uint64_t random, ops, verified, lives;
    size_t live, count;
    struct block block[MOST];
};

static struct estate *estates;
static atomic_int stopping;
static size_t budget;

static void paint(const struct block *b)
{
    size_t whole = b->n <= WHOLE ? b->n : 64;
    fill(b->p, whole, b->seed);
    for (size_t at = 4096; at + 8 <= b->n && whole < b->n; at += 4096)
        fill(b->p + at, 8, b->seed + at);
}

static void look(struct estate *e, const struct block *b)
{
    size_t whole = b->n <= WHOLE ? b->n : 64;
    verify(b->p, whole, b->seed, "block of the churn");
    for (size_t at = 4096; at + 8 <= b->n && whole < b->n; at += 4096)
        verify(b->p + at, 8, b->seed + at, "large block of the churn");
    e->verified++;
}

static size_t pick(struct estate *e)
{
    uint64_t r = next_random(&e->random) % 256;
    return log_size(&e->random, r < 200 ? 10 : r < 252 ? 15 : r < 255 ? 19 : 22);
}

static void take(struct estate *e)
{
    struct block *b = &e->block[e->count];
    size_t n = pick(e);
    uint64_t how = next_random(&e->random) % 8;
    void *p = NULL;
    if (how < 5)
        p = malloc(n);
    else if (how < 7)
        p = calloc(1, n);
    else
        CHECK(posix_memalign(&p, (size_t)16 << next_random(&e->random) % 6, n) == 0, "posix_memalign of %zu", n);
    b->p = hide(p);
    CHECK(b->p != NULL, "%zu bytes", n);
    CHECK(how < 5 || how == 7 || all_zero(b->p, n), "calloc of %zu is not zero", n);
    b->n = n;
    b->seed = next_random(&e->random);
    paint(b);
    e->live += n;
    e->count++;
}

static void give(struct estate *e)
{
    size_t at = next_random(&e->random) % e->count;
    look(e, &e->block[at]);
    e->live -= e->block[at].n;
    free(e->block[at].p);
    e->block[at] = e->block[--e->count];
}

static void resize(struct estate *e)
{
    struct block *b = &e->block[next_random(&e->random) % e->count];
    size_t n = pick(e), kept = n < b->n ? n : b->n;
    look(e, b);
    b->p = hide(realloc(b->p, n));
    CHECK(b->p != NULL, "realloc to %zu", n);
    size_t whole = b->n <= WHOLE ? kept : kept < 64 ? kept : 64;
    verify(b->p, whole, b->seed, "block after realloc");
    e->live += n - b->n;
    b->n = n;
    paint(b);
}

static void *work(void *argument)
{
    struct estate *e = argument;
    int64_t until = now_ms() + 20 + (int64_t)(next_random(&e->random) % 700);
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        uint64_t what = next_random(&e->random) % 16;
        if (e->count > 0 && what == 0)
            resize(e);
        else if (e->count == MOST || (e->live > budget && e->count > 0))
            give(e);
        else if (e->live < budget - budget / 16 || e->count == 0)
            take(e);
        else if (what % 2)
            take(e);
        else
            give(e);
        if (++e->ops % 256 == 0 && now_ms() > until)
            break;
    }
    atomic_store(&e->done, 1);
    return NULL;
}

static void launch(struct estate *e)
{
    e->lives++;
    atomic_store(&e->done, 0);
    CHECK(pthread_create(&e->thread, NULL, work, e) == 0, "pthread_create");
}

int main(int argc, char **argv)
{
    start();
    int seconds = argc > 1 ? atoi(argv[1]) : 20;
    size_t mib = argc > 2 ? (size_t)atoi(argv[2]) : 96;
    unsigned threads = argc > 3 ? (unsigned)atoi(argv[3]) : 6;
    CHECK(seconds >= 5 && mib >= 8 && threads >= 1 && threads <= MAX_THREADS, "seconds >= 5, MiB >= 8, threads <= 64");
    budget = mib * MIB / threads;
    estates = calloc(threads, sizeof *estates);
    CHECK(estates != NULL, "%u threads", threads);
    for (unsigned t = 0; t < threads; t++) {
        estates[t].random = mix(t + 77) | 1;
        launch(&estates[t]);
    }
    int64_t begin = now_ms(), length = seconds * 1000;
    int64_t early_from = length / 12, early_to = length / 8, late_from = length - length / 24;
    double early = 0, late = 0;
    unsigned early_samples = 0, late_samples = 0;
    for (int64_t now; (now = now_ms() - begin) < length; sleep_ms(10)) {
        for (unsigned t = 0; t < threads; t++)
            if (atomic_load(&estates[t].done)) {
                pthread_join(estates[t].thread, NULL);
                launch(&estates[t]);
            }
        double resident = (double)status_kib("VmRSS:");
        /* One at least, however late the system lets us look. */
        if (now >= early_from && (now < early_to || early_samples == 0)) {
            early += resident;
            early_samples++;
        } else if (now >= late_from) {
            late += resident;
            late_samples++;
        }
    }
    if (late_samples == 0) {
        late = (double)status_kib("VmRSS:");
        late_samples = 1;
    }
    atomic_store(&stopping, 1);
    uint64_t ops = 0, verified = 0, lives = 0;
    size_t live = 0, blocks = 0;
    for (unsigned t = 0; t < threads; t++) {
        struct estate *e = &estates[t];
        pthread_join(e->thread, NULL);
        live += e->live;
        blocks += e->count;
        while (e->count > 0)
            give(e);
        CHECK(e->live == 0, "the sum is wrong");
        ops += e->ops;
        verified += e->verified;
        lives += e->lives;
    }
    CHECK(early_samples > 0, "no samples");
    early /= early_samples;
    late /= late_samples;
    double change = 100 * (late - early) / early;
    printf("churn: %d s, %lu threads came and went, ops=%lu verified=%lu errors=0, %zu MiB live in %zu blocks, resident "
           "%.1f MiB after a twelfth and %.1f at the end (%+.1f %%), most=%zu KiB, validate %s\n", seconds, (unsigned long)lives,
           (unsigned long)ops, (unsigned long)verified, live / MIB, blocks, early / 1024, late / 1024, change,
           (size_t)status_kib("VmHWM:"), validate());
    /* A twelfth of a few seconds is no steady state yet, least of all where the machine has other work. */
    double bound = seconds < 60 ? 25 : 10;
    CHECK(!on_uslub() || (change < bound && change > -bound), "resident memory changed by %.1f %%", change);
    free(estates);
    return 0;
}
