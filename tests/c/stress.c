/*
 * Proves that no block is lost, handed out twice or damaged: threads take
 * 1 B … 4 MiB by every call, fill each block with a pattern made of its
 * address and a serial number, pass blocks to each other by atomic exchange
 * and verify them before they change or go. Meanwhile timers interrupt every
 * 100 µs, two threads hop from CPU to CPU, and threads end and are replaced.
 * At the end, when all is freed, nothing may be live that was not so at the start.
 *
 * By hand:  ./stress [SECONDS (5) [THREADS (16)]]
 * Last line: ops=… verified=… errors=0
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define MAX_THREADS 256
#define SLOTS 48 /* a thread's own blocks */
#define SHARED 64
#define WHOLE 65536 /* larger blocks are filled and verified at chosen places */

/* A block and what it must contain. Descriptors change owner by exchange. */
struct item {
    unsigned char *p;
    size_t n;
    uint64_t seed;
};

struct worker {
    pthread_t thread;
    unsigned index;
    int lives;
    uint64_t random;
    struct item *slot[SLOTS];
    uint64_t ops, verified, bytes, passed;
    atomic_int done;
};

static struct item items[MAX_THREADS * SLOTS + SHARED];
static _Atomic(struct item *) shared[SHARED];
static struct worker workers[MAX_THREADS];
static atomic_int stopping;
static atomic_ulong ticks, replaced, hops;
static __thread uint64_t ticks_here;
static cpu_set_t allowed;

static void on_tick(int signal)
{
    (void)signal;
    ticks_here++;
    atomic_fetch_add_explicit(&ticks, 1, memory_order_relaxed);
}

static void start_timer(int signal)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = signal;
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
    long period = (long)slowed(100000);
    struct itimerspec every = {{0, period}, {0, period}};
    CHECK(timer_settime(timer, 0, &every, NULL) == 0, "timer_settime");
}

/* Small blocks whole; of large ones the first and last 4 KiB and the first
 * 8 bytes of each page between. */
static void paint(struct item *item)
{
    if (item->n <= WHOLE) {
        fill(item->p, item->n, item->seed);
        return;
    }
    fill(item->p, 4096, item->seed);
    for (size_t at = 4096; at + 4104 <= item->n; at += 4096)
        fill(item->p + at, 8, item->seed + at);
    fill(item->p + item->n - 4096, 4096, item->seed + item->n);
}

static void inspect(struct worker *w, const struct item *item, size_t n, const char *what)
{
    w->verified++;
    if (item->n <= WHOLE) {
        verify(item->p, n, item->seed, what);
        return;
    }
    verify(item->p, n < 4096 ? n : 4096, item->seed, what);
    for (size_t at = 4096; at + 4104 <= item->n && at + 8 <= n; at += 4096)
        verify(item->p + at, 8, item->seed + at, what);
    if (n == item->n)
        verify(item->p + n - 4096, 4096, item->seed + n, what);
}

static void paint_new(struct worker *w, struct item *item, void *p, size_t n, const char *what)
{
    CHECK(p != NULL, "%s of %zu bytes gave NULL", what, n);
    CHECK((uintptr_t)p % (n >= 16 ? 16 : 8) == 0, "%s of %zu bytes: %p is misaligned", what, n, p);
    item->p = p;
    item->n = n;
    if (w->ops % 8 == 0) {
        item->n = malloc_usable_size(p);
        CHECK(item->n >= n, "usable size %zu of %zu", item->n, n);
    }
    item->seed = mix((uintptr_t)p ^ ((w->ops << 9 | w->index) * PATTERN_STEP));
    w->bytes += item->n;
    paint(item);
}

/* Sizes: mostly small, as programs do; every class up to 4 MiB comes often. */
static size_t pick_size(struct worker *w)
{
    uint64_t r = next_random(&w->random) % 32;
    return log_size(&w->random, r < 24 ? 10 : r < 31 ? 16 : 22);
}

static void take(struct worker *w, struct item *item)
{
    size_t n = pick_size(w);
    uint64_t how = next_random(&w->random) % 16;
    void *p = NULL;
    if (how < 9) {
        paint_new(w, item, hide(malloc(n)), n, "malloc");
    } else if (how < 13) {
        p = hide(calloc(how % 2 ? 1 : n, how % 2 ? n : 1));
        CHECK(p != NULL && all_zero(p, n), "calloc of %zu: %p is not zero", n, p);
        paint_new(w, item, p, n, "calloc");
    } else {
        size_t a = (size_t)16 << next_random(&w->random) % 13;
        if (how == 15)
            n = (n + a - 1) & ~(a - 1); /* as C11 wants it of aligned_alloc */
        if (how == 13)
            CHECK(posix_memalign(&p, a, n) == 0, "posix_memalign(%zu, %zu)", a, n);
        else
            p = how == 14 ? memalign(a, n) : aligned_alloc(a, n);
        p = hide(p);
        CHECK((uintptr_t)p % a == 0, "aligned to %zu: %p", a, p);
        paint_new(w, item, p, n, "memalign");
    }
}

static void give(struct worker *w, struct item *item)
{
    inspect(w, item, item->n, "block before free");
    /* a block found twice must show: leave a mark that fits no pattern */
    memset(item->p, 0xdd, item->n < 16 ? item->n : 16);
    free(item->p);
    item->p = NULL;
}

static void resize(struct worker *w, struct item *item)
{
    size_t n = next_random(&w->random) % 4 ? pick_size(w) : item->n + item->n / 4 + 1;
    if (n > 4 * MIB)
        n = 4 * MIB;
    inspect(w, item, item->n, "block before realloc");
    void *p = hide(realloc(item->p, n));
    CHECK(p != NULL, "realloc to %zu", n);
    item->p = p;
    inspect(w, item, n < item->n ? n : item->n, "block after realloc");
    paint_new(w, item, p, n, "realloc");
}

static void hop(struct worker *w)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    unsigned pick = (unsigned)(next_random(&w->random) % (unsigned)CPU_COUNT(&allowed));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && pick-- == 0)
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        atomic_fetch_add(&hops, 1);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    int64_t until = now_ms() + 100 + (int64_t)(next_random(&w->random) % 400);
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        w->ops++;
        unsigned s = (unsigned)(next_random(&w->random) % SLOTS);
        uint64_t what = next_random(&w->random) % 16;
        if (what < 5) { /* a block changes hands; its next owner frees it */
            w->slot[s] = atomic_exchange(&shared[next_random(&w->random) % SHARED], w->slot[s]);
            w->passed++;
        }
        if (w->slot[s]->p == NULL)
            take(w, w->slot[s]);
        else if (what < 12)
            give(w, w->slot[s]);
        else if (what < 14)
            resize(w, w->slot[s]);
        else
            inspect(w, w->slot[s], w->slot[s]->n, "block at rest");
        if (w->index < 2 && w->ops % 16 == 0)
            hop(w);
        if (w->ops % 256 == 0 && w->index >= 2 && now_ms() > until)
            break;
        if (w->ops % 65536 == 0 && w->index == 3)
            malloc_trim(0);
    }
    atomic_store(&w->done, 1);
    return NULL;
}

static void launch(struct worker *w)
{
    w->random = mix(w->index * 1000003u + (unsigned)w->lives * 7919u + 1) | 1;
    w->lives++;
    atomic_store(&w->done, 0);
    CHECK(pthread_create(&w->thread, NULL, work, w) == 0, "pthread_create");
}

/* Bytes that the allocator believes to be live. */
static size_t live(void)
{
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

int main(int argc, char **argv)
{
    start();
    size_t live_before = live();
    int seconds = argc > 1 ? atoi(argv[1]) : 5;
    unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 16;
    CHECK(threads >= 1 && threads <= MAX_THREADS, "1 to %d threads", MAX_THREADS);
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "sched_getaffinity");
    for (unsigned i = 0; i < SHARED; i++)
        atomic_store(&shared[i], &items[MAX_THREADS * SLOTS + i]);
    for (unsigned t = 0; t < threads; t++) {
        workers[t].index = t;
        for (unsigned s = 0; s < SLOTS; s++)
            workers[t].slot[s] = &items[t * SLOTS + s];
        launch(&workers[t]);
    }
    /* signals are for the workers; the kernel picks the one that runs */
    sigset_t both, none;
    sigemptyset(&both);
    sigaddset(&both, SIGALRM);
    sigaddset(&both, SIGRTMIN + 1);
    pthread_sigmask(SIG_BLOCK, &both, &none);
    start_timer(SIGALRM);
    start_timer(SIGRTMIN + 1);

    for (int64_t end = now_ms() + seconds * 1000; now_ms() < end; sleep_ms(10)) {
        for (unsigned t = 0; t < threads; t++) {
            if (!atomic_load(&workers[t].done))
                continue;
            pthread_join(workers[t].thread, NULL);
            atomic_fetch_add(&replaced, 1);
            pthread_sigmask(SIG_SETMASK, &none, NULL); /* the new thread takes signals */
            launch(&workers[t]);
            pthread_sigmask(SIG_BLOCK, &both, NULL);
        }
    }
    atomic_store(&stopping, 1);
    uint64_t ops = 0, verified = 0, bytes = 0, passed = 0;
    for (unsigned t = 0; t < threads; t++)
        pthread_join(workers[t].thread, NULL);
    signal(SIGALRM, SIG_IGN);
    signal(SIGRTMIN + 1, SIG_IGN);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        if (items[i].p != NULL)
            give(&workers[0], &items[i]);
    for (unsigned t = 0; t < threads; t++) {
        ops += workers[t].ops;
        verified += workers[t].verified;
        bytes += workers[t].bytes;
        passed += workers[t].passed;
    }
    /* libc keeps some blocks for each stack of a thread that it keeps */
    size_t live_after = live();
    CHECK(live_after < live_before + 65536 + threads * 4096, "%zu bytes are lost", live_after - live_before);
    CHECK(verified > 0 && ops > 0, "nothing was done");
    CHECK(atomic_load(&ticks) > (unsigned)seconds * 500u / slowed(1), "only %lu interruptions", atomic_load(&ticks));
    printf("stress: %u threads, %lu replaced, %lu interruptions, %lu hops, %lu passed on, %lu MiB, "
           "%+ld bytes live, validate %s\n", threads, atomic_load(&replaced), atomic_load(&ticks), atomic_load(&hops),
           (unsigned long)passed, (unsigned long)(bytes / MIB),
           (long)(live_after - live_before), validate());
    printf("ops=%lu verified=%lu errors=0\n", (unsigned long)ops, (unsigned long)verified);
    return 0;
}
