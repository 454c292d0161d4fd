/*
 * Proves that the calls that look into the allocator tell the truth and may be
 * called at any time: malloc_usable_size, mallinfo, mallinfo2, malloc_stats,
 * malloc_info (well-formed XML), malloc_trim, mallopt; and the frees that
 * carry a size (C23), which glibc 2.36 lacks.
 */
#include "common.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* mallinfo */

#define BLOCKS 10000
static void *block[BLOCKS];

static void take(size_t n)
{
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = hide(malloc(n));
        CHECK(block[i] != NULL, "malloc(%zu)", n);
        memset(block[i], i, n);
    }
}

static void give(void)
{
    for (int i = 0; i < BLOCKS; i++)
        free(block[i]);
}

/* Live bytes must follow what is taken. Objects that waited in per-CPU caches
 * may have counted as live before, so two per cent are granted. */
static void mallinfo_follows(void)
{
    take(1000);
    give();
    malloc_trim(0);
    struct mallinfo2 before = mallinfo2();
    struct mallinfo narrow_before = mallinfo();
    take(1000);
    struct mallinfo2 during = mallinfo2();
    struct mallinfo narrow_during = mallinfo();
    size_t wanted = BLOCKS * (size_t)1000 / 100 * 98;
    CHECK(during.uordblks >= before.uordblks + wanted, "uordblks grew by %zu, not %zu",
          during.uordblks - before.uordblks, wanted);
    CHECK((size_t)(narrow_during.uordblks - narrow_before.uordblks) >= wanted,
          "mallinfo: uordblks grew by %d", narrow_during.uordblks - narrow_before.uordblks);
    CHECK(during.uordblks < before.uordblks + 3 * wanted, "uordblks grew by %zu for %d bytes",
          during.uordblks - before.uordblks, BLOCKS * 1000);
    give();
    malloc_trim(0);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.uordblks < before.uordblks + wanted / 10, "uordblks stays at %zu after all is freed",
          after.uordblks);

    before = mallinfo2();
    void *huge = hide(malloc(64 * MIB));
    during = mallinfo2();
    CHECK(during.uordblks + during.hblkhd >= before.uordblks + before.hblkhd + 64 * MIB,
          "64 MiB are not seen: uordblks %zu hblkhd %zu", during.uordblks, during.hblkhd);
    CHECK(during.arena + during.hblkhd >= during.uordblks, "more in use than there is");
    free(huge);
    after = mallinfo2();
    CHECK(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + MIB,
          "64 MiB stay counted: uordblks %zu hblkhd %zu", after.uordblks, after.hblkhd);
}

static void stats_go_to_stderr(void)
{
    char text[8192];
    int file = (int)syscall(SYS_memfd_create, "stats", 0), old = dup(2);
    CHECK(file >= 0 && old >= 0, "memfd_create");
    dup2(file, 2);
    malloc_stats();
    fflush(stderr);
    dup2(old, 2);
    close(old);
    ssize_t n = pread(file, text, sizeof text, 0);
    CHECK(n > 20 && text[n < (ssize_t)sizeof text ? n - 1 : 0] != 0, "malloc_stats wrote %zd bytes", n);
    close(file);
}

/* Enough of XML: every element closes in order, attributes are quoted. */
static void well_formed(const char *xml)
{
    char open[32][32];
    int depth = 0, elements = 0;
    const char *p = xml;
    CHECK(strncmp(p, "<malloc version=", 16) == 0, "malloc_info begins with %.40s", p);
    while ((p = strchr(p, '<')) != NULL) {
        const char *end = p + 1;
        char quote = 0;
        for (; *end != 0 && (quote != 0 || *end != '>'); end++) {
            CHECK(*end != '<', "a < inside a tag: %.40s", p);
            if (*end == '"' || *end == '\'')
                quote = quote == *end ? 0 : quote == 0 ? *end : quote;
        }
        CHECK(*end == '>', "a tag is not closed: %.40s", p);
        int closing = p[1] == '/', single = end[-1] == '/';
        const char *name = p + 1 + closing;
        size_t length = strcspn(name, " />\t\n");
        CHECK(length > 0 && length < 32, "a tag without a name: %.40s", p);
        if (closing) {
            CHECK(depth > 0 && strncmp(open[depth - 1], name, length) == 0
                      && open[depth - 1][length] == 0, "closes what is not open: %.40s", p);
            depth--;
        } else {
            elements++;
            CHECK(depth > 0 || elements == 1, "a second root: %.40s", p);
            if (!single) {
                CHECK(depth < 32, "nested too deep");
                memcpy(open[depth], name, length);
                open[depth++][length] = 0;
            }
        }
        p = end + 1;
        if (depth == 0 && elements > 0)
            break;
    }
    CHECK(depth == 0 && elements > 1, "malloc_info: %d elements, %d left open", elements, depth);
    CHECK(p != NULL && p[strspn(p, " \n\t")] == 0, "text behind the root: %.40s", p);
}

static void info_is_xml(void)
{
    static char text[1 << 20];
    take(100);
    for (int stream = 0; stream < 2; stream++) {
        char *grown = NULL; /* the second stream allocates while it is written */
        size_t size = 0;
        FILE *f = stream == 0 ? fdopen((int)syscall(SYS_memfd_create, "info", 0), "w+")
                              : open_memstream(&grown, &size);
        CHECK(f != NULL, "no stream");
        CHECK(malloc_info(0, f) == 0, "malloc_info(0) did not return 0");
        fflush(f);
        if (stream == 0) {
            rewind(f);
            size_t n = fread(text, 1, sizeof text - 1, f);
            text[n] = 0;
            well_formed(text);
        } else {
            well_formed(grown);
        }
        int result = malloc_info(1, f);
        CHECK(result == EINVAL, "malloc_info(1) returned %d, not EINVAL", result);
        fclose(f);
        free(grown);
    }
    give();
}

static void usable_size(void)
{
    CHECK(malloc_usable_size(hide(NULL)) == 0, "malloc_usable_size(NULL)");
    for (size_t n = 1; n < 40 * MIB; n += n / 3 + 1) {
        void *p = hide(malloc(n));
        size_t usable = malloc_usable_size(p);
        CHECK(usable >= n, "malloc_usable_size of %zu is %zu", n, usable);
        fill(p, usable, n);
        verify(p, usable, n, "all that is usable");
        CHECK(malloc_usable_size(p) == usable, "malloc_usable_size changed");
        free(p);
    }
}

static void trim_and_options(void)
{
    for (int i = 0; i < 50; i++) {
        take((size_t)(i * 37 % 900 + 1));
        for (int k = 0; k < BLOCKS; k += 2) {
            free(block[k]);
            block[k] = NULL;
        }
        int result = malloc_trim(opaque(i % 3 * 4096));
        CHECK(result == 0 || result == 1, "malloc_trim returned %d", result);
        for (int k = 1; k < BLOCKS; k += 2)
            CHECK(*(unsigned char *)block[k] == (unsigned char)k, "malloc_trim damaged a live block");
        give();
    }
    int result = malloc_trim(0);
    CHECK(result == 0 || result == 1, "malloc_trim returned %d", result);
    static const int option[] = {M_MXFAST, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD,
                                 M_MMAP_MAX, M_ARENA_MAX, -12345, 12345};
    for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
        result = mallopt(option[i], 64);
        CHECK(result == 0 || result == 1, "mallopt(%d) returned %d", option[i], result);
    }
    free(hide(malloc(100000)));
}

/* The function, or NULL where only glibc is there and lacks it. */
static void *needed(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    CHECK(address != NULL || !on_uslub(), "%s is missing", name);
    if (address == NULL)
        say("info: %s is not in this libc; not checked", name);
    return address;
}

static void sized_frees(void)
{
    void (*sized)(void *, size_t), (*aligned)(void *, size_t, size_t), (*plain)(void *);
    void *s = needed("free_sized"), *a = needed("free_aligned_sized"), *c = needed("cfree");
    memcpy(&sized, &s, sizeof s);
    memcpy(&aligned, &a, sizeof a);
    memcpy(&plain, &c, sizeof c);
    for (size_t n = 0; n < 40 * MIB; n += n / 4 + 1) {
        for (int i = 0; i < 4; i++) {
            if (s != NULL) {
                void *p = hide(i % 2 ? malloc(n) : calloc(1, n));
                memset(p, 1, n);
                errno = 4711;
                sized(p, n);
                CHECK(errno == 4711, "free_sized changed errno");
            }
            if (a != NULL) {
                size_t alignment = (size_t)8 << (i * 4);
                void *p = hide(aligned_alloc(alignment, n));
                memset(p, 1, n);
                aligned(p, alignment, n);
            }
            if (c != NULL)
                plain(hide(malloc(n)));
        }
    }
    if (s != NULL)
        sized(NULL, 0);
    if (a != NULL)
        aligned(NULL, 16, 0);
    if (c != NULL)
        plain(NULL);
}

/* On uslub, none of the family may come from elsewhere. */
static void one_family(void)
{
    static const char *const names[] = {"malloc", "free", "calloc", "realloc", "reallocarray",
        "posix_memalign", "aligned_alloc", "memalign", "valloc", "pvalloc", "malloc_usable_size",
        "malloc_trim", "mallinfo", "mallinfo2", "malloc_stats", "malloc_info", "mallopt",
        "free_sized", "free_aligned_sized", "cfree"};
    for (size_t i = 0; on_uslub() && i < sizeof names / sizeof *names; i++) {
        Dl_info where;
        void *address = needed(names[i]);
        CHECK(dladdr(address, &where) != 0 && strstr(where.dli_fname, "uslub") != NULL,
              "%s is not uslub's", names[i]);
    }
}

int main(void)
{
    start();
    one_family();
    usable_size();
    mallinfo_follows();
    stats_go_to_stderr();
    info_is_xml();
    sized_frees();
    trim_and_options();
    printf("info: ok, validate %s\n", validate());
    return 0;
}
