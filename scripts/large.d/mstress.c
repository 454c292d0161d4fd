// Threads that come and go, keep some objects of mixed sizes, and pass others on through a shared
// array: `mstress THREADS SCALE_IN_PER_CENT ROUNDS`.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PASSED = 1000 };

static _Atomic(char *) passed[PASSED];
static size_t scale;

static uint64_t dice(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

// Mostly small, sometimes large: a hundredth above 100 objects' length, a tenth of these far above.
static char *make(uint64_t *state) {
    size_t words = 1 + dice(state) % 32;
    if (dice(state) % 100 == 0)
        words *= 100;
    if (dice(state) % 1000 == 0)
        words *= 1000;
    char *object = malloc(words * 8);
    for (size_t at = 0; at < words * 8; at += 64)
        object[at] = 1;
    return object;
}

static void *work(void *number) {
    uint64_t state = 88172645463325252 + (uint64_t)(uintptr_t)number * 977;
    size_t count = 100 * scale * ((uintptr_t)number % 8 + 1), kept = 0, places = 0;
    char **keep = 0;
    for (size_t allocated = count, retained = count / 2; allocated > 0 || retained > 0;) {
        if (retained == 0 || (dice(&state) % 2 == 0 && allocated > 0)) {
            allocated--;
            if (kept == places) {
                places = places ? 2 * places : 4096;
                keep = realloc(keep, places * sizeof *keep);
            }
            keep[kept++] = make(&state);
        } else {
            retained--;
            free(make(&state));
        }
        if (dice(&state) % 100 >= 66 && kept > 0) {
            size_t at = dice(&state) % kept;
            free(keep[at]);
            keep[at] = keep[--kept];
        }
        if (dice(&state) % 100 >= 75 && kept > 0) {
            size_t at = dice(&state) % kept;
            keep[at] = atomic_exchange(&passed[dice(&state) % PASSED], keep[at]);
            if (!keep[at])
                keep[at] = keep[--kept];
        }
    }
    while (kept > 0)
        free(keep[--kept]);
    free(keep);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t threads = strtoul(argv[1], 0, 10), rounds = strtoul(argv[3], 0, 10);
    scale = strtoul(argv[2], 0, 10);
    pthread_t *all = calloc(threads, sizeof *all);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < threads; i++)
            if (pthread_create(&all[i], 0, work, (void *)(uintptr_t)(i + 1)))
                return 1;
        for (size_t i = 0; i < threads; i++)
            pthread_join(all[i], 0);
        if ((round + 1) % 10 == 0)
            for (size_t i = 0; i < PASSED; i++)
                free(atomic_exchange(&passed[i], 0));
    }
    free(all);
    return 0;
}
