/*
 * Proves that a signal handler may allocate and free small blocks while the
 * interrupted code does the same: each side keeps at most 4 blocks of a size
 * that is in its CPU's sheaf already, so both stay on the fast path, where a
 * signal restarts the sequence. It stays on one CPU: another's sheaves have to
 * be filled first, under locks. glibc may deadlock here and is not asked.
 *
 * By hand:  USLUB_EXPECT=1 LD_PRELOAD=… ./signals [SECONDS (3)]
 */
#include "common.h"
#include <sched.h>
#include <signal.h>
#include <sys/time.h>

#define AT_ONCE 4
static volatile uint64_t handled;

static void a_few(uint64_t *random, const char *what)
{
    unsigned char *p[AT_ONCE];
    size_t n[AT_ONCE];
    uint64_t seed[AT_ONCE];
    unsigned count = (unsigned)(next_random(random) % AT_ONCE) + 1;
    for (unsigned i = 0; i < count; i++) {
        n[i] = log_size(random, 10);
        p[i] = hide(malloc(n[i]));
        CHECK(p[i] != NULL, "%s: malloc(%zu)", what, n[i]);
        seed[i] = mix((uintptr_t)p[i] ^ *random);
        fill(p[i], n[i], seed[i]);
    }
    for (unsigned i = 0; i < count; i++) {
        verify(p[i], n[i], seed[i], what);
        free(p[i]);
    }
}

static void on_tick(int signal)
{
    static uint64_t random = 4242;
    int before = errno;
    (void)signal;
    a_few(&random, "block of the handler");
    handled = handled + 1;
    errno = before;
}

int main(int argc, char **argv)
{
    start();
    if (!on_uslub()) {
        say("signals: skipped: needs uslub");
        return 0;
    }
    uint64_t random = 17, rounds = 0;
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    CHECK(sched_setaffinity(0, sizeof here, &here) == 0, "sched_setaffinity");
    for (size_t n = 1; n <= 1024; n++) { /* every class has objects at hand */
        void *p[2 * AT_ONCE + 2];
        for (int i = 0; i < 2 * AT_ONCE + 2; i++)
            p[i] = hide(malloc(n));
        for (int i = 0; i < 2 * AT_ONCE + 2; i++)
            free(p[i]);
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, slowed(200)}, {0, slowed(200)}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0, "setitimer");
    int64_t end = now_ms() + (argc > 1 ? atoi(argv[1]) : 3) * 1000;
    do {
        for (int i = 0; i < 1000; i++, rounds++)
            a_few(&random, "block of main");
    } while (now_ms() < end);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(handled > 100, "the handler ran only %lu times", (unsigned long)handled);
    printf("signals: ok, %lu rounds, %lu interruptions, validate %s\n", (unsigned long)rounds,
           (unsigned long)handled, validate());
    return 0;
}
