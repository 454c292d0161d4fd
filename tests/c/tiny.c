/*
 * A tiny program for instruments: it runs under valgrind's tools, is stepped
 * through in gdb (which breaks at `stepped`), and its output is always the same.
 *
 * By hand:  ./tiny [ROUNDS (200)]
 */
#include "common.h"

/* How often all that `stepped` took was given back. */
volatile int rounds_done;

/* Little but malloc and free: the call to stand before when stepping begins. */
__attribute__((noinline)) void stepped(unsigned char *mark)
{
    for (unsigned i = 0; i < 200; i++) {
        unsigned char *p = hide(malloc(64)), *q = hide(malloc(i * 8));
        *p = *mark = (unsigned char)i;
        free(q);
        CHECK(*p == (unsigned char)i, "a block is damaged");
        free(p);
        rounds_done = rounds_done + 1;
    }
}

static unsigned long churn(int round)
{
    unsigned long sum = 0;
    void *p[20];
    for (int i = 0; i < 20; i++) {
        size_t n = (size_t)(round * 7 + i * i * 13) % 3000 + 1;
        p[i] = hide(i % 4 == 0 ? calloc(1, n) : malloc(n));
        CHECK(p[i] != NULL, "malloc(%zu)", n);
        fill(p[i], n, (uint64_t)i);
        sum += n;
    }
    for (int i = 0; i < 20; i++) {
        size_t n = (size_t)(round * 7 + i * i * 13) % 3000 + 1;
        verify(p[i], n, (uint64_t)i, "block of tiny");
        free(p[i]);
    }
    return sum;
}

int main(int argc, char **argv)
{
    start();
    int rounds = argc > 1 ? atoi(argv[1]) : 200;
    unsigned long sum = 0;
    for (int i = 0; i < rounds; i++) {
        unsigned char mark = 0;
        stepped(&mark);
        sum += churn(i) + mark;
    }
    void *large = hide(malloc(300000)), *huge = hide(malloc(20 * MIB));
    memset(large, 1, 300000);
    memset(huge, 1, 10000);
    huge = hide(realloc(huge, 40 * MIB));
    CHECK(large != NULL && huge != NULL && ((char *)huge)[9999] == 1, "large blocks");
    free(large);
    free(huge);
    printf("tiny: ok, %lu bytes in %d rounds, validate %s\n", sum, rounds, validate());
    return 0;
}
