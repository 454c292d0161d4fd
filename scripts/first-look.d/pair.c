/*
 * Prints the thread CPU time of one malloc and free pair in nanoseconds, and
 * the file that malloc came from. Both calls go through the PLT.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void pairs(size_t size, long count)
{
    for (long pair = 0; pair < count; pair++) {
        void *block = malloc(size);
        /* The block is used, as far as the compiler knows. */
        __asm__ volatile("" : "+r"(block) : : "memory");
        free(block);
    }
}

int main(int argc, char **argv)
{
    size_t size = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    long count = argc > 2 ? strtol(argv[2], NULL, 10) : 50000000;
    Dl_info origin;
    if (!dladdr(dlsym(RTLD_DEFAULT, "malloc"), &origin))
        return 1;
    pairs(size, count / 10);
    double start = nanoseconds();
    pairs(size, count);
    printf("%.4f %s\n", (nanoseconds() - start) / (double)count, origin.dli_fname);
    return 0;
}
