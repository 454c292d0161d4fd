/*
 * Proves that slab_debug is switched for malloc's classes in a process that
 * began without it. The first argument says what happens:
 *
 *   right     threads allocate, move and free, and children are forked, while
 *             the letters change; what is right gives no report
 *   old       objects from before the switch are freed right, and a double
 *             free of one is seen
 *   refused   what cannot be switched is refused, and changes nothing
 *   behind, asked, before, after-free, twice, interior
 *             the bug of an object from after the switch; "object ADDRESS" is
 *             printed first
 *
 * By hand:  LD_PRELOAD=… ./switched asked
 */
#include "common.h"

#include <pthread.h>
#include <sys/wait.h>

static int (*set_debug)(const char *value);

static void switch_to(const char *value)
{
    CHECK(set_debug(value) == 0, "%s", value);
}

/* An object of the class of 48 bytes. */
static char *object(void)
{
    char *p = hide(malloc(40));
    printf("object %p\n", (void *)p);
    fflush(stdout);
    return p;
}

/* Blocks of each kind; what they hold is checked when they are freed. */
static void use(uint64_t *random)
{
    enum { COUNT = 64 };
    struct {
        unsigned char *p;
        size_t bytes;
        unsigned char tag;
    } held[COUNT] = {{0}};
    for (int round = 0; round < 2000; round++) {
        uint64_t r = next_random(random);
        int i = (int)(r % COUNT);
        size_t n = (r >> 8) % 9000 >> (r >> 24) % 8;
        unsigned char tag = (unsigned char)(r >> 40);
        if (held[i].p && (r >> 48) % 3 == 0) {
            unsigned char *p = hide(realloc(held[i].p, n + 1));
            CHECK(p != NULL, "realloc to %zu", n + 1);
            for (size_t k = 0; k <= n && k < held[i].bytes; k++)
                CHECK(p[k] == held[i].tag, "byte %zu of %zu", k, n);
            memset(p, tag, n + 1);
            held[i].p = p, held[i].bytes = n + 1, held[i].tag = tag;
            continue;
        }
        for (size_t k = 0; k < held[i].bytes; k++)
            CHECK(held[i].p[k] == held[i].tag, "byte %zu of %zu", k, held[i].bytes);
        free(held[i].p);
        if ((r >> 50) % 3 == 0) {
            held[i].p = hide(aligned_alloc(64, (n + 64) & ~(size_t)63));
            CHECK((uintptr_t)held[i].p % 64 == 0, "alignment");
        } else if ((r >> 50) % 3 == 1) {
            held[i].p = hide(calloc(n + 1, 1));
            for (size_t k = 0; k <= n; k++)
                CHECK(held[i].p[k] == 0, "calloc");
        } else {
            held[i].p = hide(malloc(n));
        }
        CHECK(held[i].p != NULL && malloc_usable_size(held[i].p) >= n, "%zu bytes", n);
        memset(held[i].p, tag, n);
        held[i].bytes = n, held[i].tag = tag;
    }
    for (int i = 0; i < COUNT; i++)
        free(held[i].p);
}

static int stop;

static void *work(void *seed)
{
    uint64_t random = (uintptr_t)seed + 77;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        use(&random);
    return NULL;
}

static void child(void)
{
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        uint64_t random = 5;
        use(&random);
        switch_to("F,kmalloc-*");
        use(&random);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
}

static void right(void)
{
    static const char *const values[] = {
        "FZPU", "-,kmalloc-4*", "F,kmalloc-48", "-", "ZU,kmalloc-*", "P",
    };
    enum { THREADS = 3, COUNT = sizeof values / sizeof *values };
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "thread");
    uint64_t random = 9;
    for (int round = 0; round < 5 * COUNT; round++) {
        switch_to(values[round % COUNT]);
        use(&random);
        if (round % 4 == 0)
            child();
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    use(&random);
    validate();
    switch_to("-");
    use(&random);
    validate();
}

static void old(void)
{
    enum { COUNT = 3000 };
    static char *kept[COUNT];
    for (int i = 0; i < COUNT; i++)
        kept[i] = hide(malloc(40));
    switch_to("FZPU,kmalloc-48");
    /* One keeps the slab of the first. */
    for (int i = 2; i < COUNT; i++)
        free(kept[i]);
    char *fresh = hide(malloc(40));
    CHECK((unsigned char)fresh[3] == 0x6b, "a debugged object shows that nobody wrote to it");
    free(fresh);
    printf("object %p\n", (void *)kept[0]);
    fflush(stdout);
    free(kept[0]);
    free(hide(kept[0]));
}

static void refused(void)
{
    static const char *const values[] = {"FQ", "F,session", "F,kmalloc-50", ";"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        errno = 0;
        CHECK(set_debug(values[i]) == -1 && errno == EINVAL, "%s", values[i]);
    }
    CHECK(set_debug(NULL) == -1 && errno == EINVAL, "null");
    char *p = hide(malloc(40));
    memset(p, 1, malloc_usable_size(p));
    free(p);
}

static void bug(const char *name)
{
    char *p = object();
    if (!strcmp(name, "behind"))
        *(volatile char *)(p + malloc_usable_size(p)) = 0x12;
    else if (!strcmp(name, "asked"))
        *(volatile char *)(p + opaque(40)) = 0x12;
    else if (!strcmp(name, "before"))
        *(volatile char *)(p - opaque(1)) = 0x12;
    if (!strcmp(name, "interior"))
        p += opaque(8);
    free(p);
    p = hide(p);
    if (!strcmp(name, "twice"))
        free(p);
    if (!strcmp(name, "after-free")) {
        *(volatile char *)(p + opaque(8)) = 0x12;
        for (int i = 0; i < 1000; i++)
            free(hide(malloc(40)));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 1, "say what happens");
    start();
    void *address = dlsym(RTLD_DEFAULT, "uslub_malloc_set_debug");
    CHECK(address != NULL, "uslub_malloc_set_debug is missing");
    memcpy(&set_debug, &address, sizeof set_debug);
    uint64_t random = 3;
    use(&random);
    if (!strcmp(argv[1], "right")) {
        right();
    } else if (!strcmp(argv[1], "old")) {
        old();
    } else if (!strcmp(argv[1], "refused")) {
        refused();
    } else {
        switch_to(argc > 2 ? argv[2] : "FZPU,kmalloc-*");
        bug(argv[1]);
    }
    puts("went on");
    return 0;
}
