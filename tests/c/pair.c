/*
 * What a malloc and a free take together: the best of some windows, in
 * nanoseconds a pair. Sizes take turns, so that two classes are in use.
 *
 * By hand:  ./pair 20 100000
 */
#include "common.h"

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

int main(int argc, char **argv)
{
    int windows = argc > 1 ? atoi(argv[1]) : 20;
    int pairs = argc > 2 ? atoi(argv[2]) : 100000;
    uint64_t best = UINT64_MAX;
    for (int window = 0; window < windows; window++) {
        uint64_t begin = now();
        for (int pair = 0; pair < pairs; pair++) {
            char *p = hide(malloc(pair % 2 ? 64 : 256));
            CHECK(p != NULL, "no memory");
            *p = 1;
            free(p);
        }
        uint64_t took = now() - begin;
        best = took < best ? took : best;
    }
    printf("%llu\n", (unsigned long long)(best / (uint64_t)pairs));
    return 0;
}
