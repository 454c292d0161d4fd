/*
 * Proves what is known of sized frees: the size and the alignment that
 * free_sized and free_aligned_sized are given are not compared with what the
 * block has, so that a wrong one is not seen, and harms nobody: the block is
 * freed as what it is.
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

int main(void)
{
    void (*free_sized)(void *, size_t);
    void (*free_aligned_sized)(void *, size_t, size_t);
    void *s = needed("free_sized"), *a = needed("free_aligned_sized");
    memcpy(&free_sized, &s, sizeof s);
    memcpy(&free_aligned_sized, &a, sizeof a);
    start();
    static const size_t sizes[] = {1, 64, 100, 4096, 5000, 100000, 8 * MIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < COUNT; k++)
            for (int round = 0; round < 100; round++) {
                unsigned char *p = hide(malloc(sizes[i]));
                CHECK(p != NULL, "malloc(%zu)", sizes[i]);
                fill(p, sizes[i] < 5000 ? sizes[i] : 5000, (uint64_t)k);
                if (round % 2)
                    free_sized(p, sizes[k]);
                else
                    free_aligned_sized(p, (size_t)16 << k, sizes[k]);
            }
    malloc_trim(0);
    printf("sized: ok, validate %s\n", validate());
    return 0;
}
