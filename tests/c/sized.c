/*
 * Proves that sized frees are compared with the block: each size and alignment
 * that a block was requested or resized with passes, however often, and with
 * two numbers of sizes as arguments the block of the first size is freed with
 * the second, which must end the program.
 *
 * By hand:  USLUB_EXPECT=1 LD_PRELOAD=… ./sized
 */
#include "common.h"

static void *needed(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    CHECK(address != NULL, "%s is missing", name);
    return address;
}

int main(int argc, char **argv)
{
    void (*free_sized)(void *, size_t);
    void (*free_aligned_sized)(void *, size_t, size_t);
    void *s = needed("free_sized"), *a = needed("free_aligned_sized");
    memcpy(&free_sized, &s, sizeof s);
    memcpy(&free_aligned_sized, &a, sizeof a);
    start();
    static const size_t sizes[] = {1, 64, 100, 4096, 5000, 100000, 8 * MIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    if (argc == 3) {
        void *p = hide(malloc(sizes[atoi(argv[1]) % COUNT]));
        say("misuse: pointer %lx", (unsigned long)(uintptr_t)p);
        free_sized(p, sizes[atoi(argv[2]) % COUNT]);
        FAIL("a wrong size was not seen");
    }
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < COUNT; k++)
            for (int round = 0; round < 100; round++) {
                size_t n = sizes[i];
                unsigned char *p = hide(round % 2 ? malloc(n) : aligned_alloc((size_t)16 << k, n));
                CHECK(p != NULL, "%zu bytes", n);
                fill(p, n < 5000 ? n : 5000, (uint64_t)k);
                if (round % 4 == 1) {
                    n = sizes[k];
                    p = hide(realloc(p, n));
                    CHECK(p != NULL, "realloc to %zu", n);
                }
                if (round % 2)
                    free_sized(p, n);
                else
                    free_aligned_sized(p, (size_t)16 << k, n);
            }
    for (size_t n = 1; n < 20000; n += 1 + n / 50)
        for (size_t less = n; less > 0; less = less * 4 / 5) {
            void *p = hide(realloc(hide(malloc(n)), less));
            CHECK(p != NULL, "realloc to %zu", less);
            free_sized(p, less);
        }
    for (size_t align = 32; align <= 2 * MIB; align *= 2)
        for (size_t n = 1; n < 20000; n += 1 + n / 4)
            for (size_t less = n; less > 0; less = less * 4 / 5) {
                void *p = hide(realloc(hide(aligned_alloc(align, n)), less));
                CHECK(p != NULL, "realloc to %zu, aligned to %zu before", less, align);
                free_sized(p, less);
            }
    malloc_trim(0);
    printf("sized: ok, validate %s\n", validate());
    return 0;
}
