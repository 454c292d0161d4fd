/*
 * What the calls of the malloc family answer at the edges of their arguments,
 * one line each. The driver compares the lines with those of a plain run, so
 * nothing is printed that two allocators may answer differently: addresses,
 * usable sizes, figures. Nothing huge is touched.
 */
#include "common.h"
#include <pthread.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* mallinfo */

/* A result: what it is, errno, whether it is aligned and so many bytes may be written. */
static void show(const char *call, size_t a, size_t b, void *object, size_t align, size_t bytes)
{
    int error = errno;
    printf("%s(%zx, %zx): %s, errno %d", call, a, b, object ? "object" : "null", error);
    if (object != NULL) {
        int fits = malloc_usable_size(object) >= bytes;
        printf(", %s, %s", (uintptr_t)object % align ? "misaligned" : "aligned",
               fits ? "long enough" : "too short");
        if (bytes <= 1 * MIB)
            memset(object, 0x5a, bytes);
        free(object);
    }
    puts("");
}

static size_t power_above(size_t n)
{
    size_t power = 16;
    while (power < n && power < (size_t)1 << 63)
        power *= 2;
    return power;
}

static const size_t sizes[] = {0,  1,           7,          15,         100, 4095, 4097, 70001, 1234567,
                               PTRDIFF_MAX - 100, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX - 4096, SIZE_MAX};
static const size_t alignments[] = {0, 1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 48, 64, 100, 1000, 4095,
                                    4096, 4097, 65536, MIB, 3 * MIB / 2, (size_t)1 << 62, ((size_t)1 << 62) + 1,
                                    (size_t)1 << 63, ((size_t)1 << 63) + 1, SIZE_MAX};
#define EACH(i, array) for (size_t i = 0; i < sizeof(array) / sizeof *(array); i++)

static void alignment_calls(void)
{
    EACH(a, alignments) EACH(s, sizes) {
        size_t align = alignments[a], bytes = sizes[s], wanted = power_above(align);
        void *object = (void *)&object, *before = object;
        errno = 0;
        int result = posix_memalign(&object, align, bytes);
        printf("result %d, %s; ", result, object == before ? "untouched" : "set");
        show("posix_memalign", align, bytes, result ? NULL : object, wanted, bytes);
        errno = 0;
        show("aligned_alloc", align, bytes, aligned_alloc(align, bytes), wanted, bytes);
        errno = 0;
        show("memalign", align, bytes, memalign(align, bytes), wanted, bytes);
    }
    EACH(s, sizes) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        errno = 0;
        show("valloc", sizes[s], 0, valloc(sizes[s]), page, sizes[s]);
        errno = 0;
        /* glibc hands out a minimal block for 0 bytes, not a page. */
        show("pvalloc", sizes[s], 0, pvalloc(sizes[s]), page, sizes[s] ? sizes[s] / page * page : 0);
    }
}

static void plain_calls(void)
{
    EACH(s, sizes) {
        size_t bytes = opaque(sizes[s]);
        errno = 0;
        show("malloc", bytes, 0, malloc(bytes), 16, bytes);
        errno = 0;
        show("calloc", bytes, 1, calloc(bytes, 1), 16, bytes);
        errno = 0;
        show("calloc", 3, bytes, calloc(3, bytes), 16, bytes);
        errno = 0;
        show("realloc of null", bytes, 0, realloc(NULL, bytes), 16, bytes);
        errno = 0;
        show("reallocarray of null", bytes, 5, reallocarray(NULL, bytes, 5), 16, bytes);
        EACH(t, sizes) {
            if (sizes[t] > MIB * 2)
                continue;
            char *old = hide(malloc(sizes[t]));
            if (sizes[t] > 0)
                old[0] = 'x';
            errno = 0;
            char *new = hide(realloc(hide(old), bytes));
            if (new == NULL && bytes > 0) {
                printf("kept: %c; ", sizes[t] > 0 ? old[0] : '-');
                free(old);
            } else if (new != NULL && sizes[t] > 0 && bytes > 0) {
                printf("moved: %c; ", new[0]);
            }
            show("realloc", sizes[t], bytes, new, 16, bytes);
        }
    }
    size_t half = (size_t)1 << 32;
    errno = 0;
    show("calloc", half, half, calloc(opaque(half), opaque(half)), 16, 0);
    void *kept = malloc(10);
    errno = 0;
    show("reallocarray", half, half, reallocarray(hide(kept), opaque(half), opaque(half)), 16, 0);
    errno = 0;
    kept = reallocarray(hide(kept), opaque(0), opaque(8));
    printf("reallocarray to nothing: %s, errno %d\n", kept ? "object" : "null", errno);
    errno = 77;
    free(NULL);
    free(hide(malloc(100)));
    free(hide(malloc(MIB * 9)));
    printf("free leaves errno %d; usable size of null %zu\n", errno, malloc_usable_size(NULL));
}

static void *figures(void *unused)
{
    void *held = hide(malloc(50000));
    struct mallinfo2 now = mallinfo2();
    struct mallinfo narrow = mallinfo();
    printf("mallinfo on a thread: %s, %s\n", now.uordblks > 0 || now.hblkhd > 0 ? "in use" : "nothing",
           narrow.arena >= 0 ? "not negative" : "negative");
    free(held);
    return unused;
}

static void questions(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, figures, NULL);
    pthread_join(thread, NULL);
    for (int options = -1; options <= 2; options++) {
        FILE *sink = fopen("/dev/null", "w");
        errno = 0;
        int result = malloc_info(options, sink);
        printf("malloc_info(%d): %d, errno %d\n", options, result, errno);
        fclose(sink);
    }
    static char *block[5000];
    EACH(i, block) block[i] = memset(hide(malloc(5000)), 1, 5000);
    EACH(i, block) free(block[i]);
    /* glibc has given the top back by itself at the last free, and then has little or nothing left. */
    printf("malloc_trim with all as padding: %d\n", malloc_trim(SIZE_MAX / 4));
    malloc_trim(0);
    printf("malloc_trim with nothing to give: %d\n", malloc_trim(0));
}

/* Last, as some change what follows. */
static void options(void)
{
    static const int values[] = {0, 1, 64, 160, 161, 4096, 1 << 25, (1 << 25) + 1, INT32_MAX, -1, INT32_MIN};
    for (int parameter = -12; parameter <= 6; parameter++)
        EACH(v, values)
            printf("mallopt(%d, %d): %d\n", parameter, values[v], mallopt(parameter, values[v]));
}

int main(void)
{
    start();
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    plain_calls();
    alignment_calls();
    questions();
    options();
    fflush(stdout);
    puts("conventions: ok");
    return 0;
}
