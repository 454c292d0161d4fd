/*
 * Proves that the allocator works before main, after main, and while
 * libraries come and go: linked against one library of early_lib.c, it
 * allocates in .preinit_array and in constructors of priority 101, then loads
 * and unloads a second copy (argv[1]) 500 times (argv[2] says otherwise), and
 * once more in a thread for each load.
 *
 * By hand:  cc -O2 -g -pthread -shared -fPIC -o libearly_linked.so early_lib.c
 *           cc -O2 -g -pthread -shared -fPIC -o libearly_loaded.so early_lib.c
 *           cc -O2 -g -pthread -o early early.c -L. -learly_linked -Wl,-rpath,.
 *           ./early ./libearly_loaded.so
 */
#include "common.h"
#include <pthread.h>

extern void *early_block(size_t n);

static void *before[32];

/* Runs before the constructor of any library, libc's among them. */
static void preinit(int argc, char **argv, char **envp)
{
    (void)argc, (void)argv, (void)envp;
    for (int i = 0; i < 16; i++) {
        before[i] = hide(malloc((size_t)100 << i));
        CHECK(before[i] != NULL, ".preinit_array got NULL");
        fill(before[i], (size_t)100 << i, (uint64_t)i);
        free(hide(malloc((size_t)77 << i)));
    }
}
__attribute__((section(".preinit_array"), used)) static void (*preinit_entry)(int, char **, char **)
    = preinit;

__attribute__((constructor(101))) static void constructed(void)
{
    for (int i = 16; i < 32; i++) {
        before[i] = hide(malloc((size_t)1 << (i - 8)));
        fill(before[i], (size_t)1 << (i - 8), (uint64_t)i);
    }
    for (int i = 0; i < 16; i += 2) {
        verify(before[i], (size_t)100 << i, (uint64_t)i, "block of .preinit_array");
        free(before[i]);
    }
}

__attribute__((destructor)) static void destructed(void)
{
    for (int i = 1; i < 16; i += 2) {
        verify(before[i], (size_t)100 << i, (uint64_t)i, "block of .preinit_array");
        free(before[i]);
    }
}

static void at_exit(void)
{
    for (int i = 16; i < 32; i++) {
        verify(before[i], (size_t)1 << (i - 8), (uint64_t)i, "block of a constructor");
        free(before[i]);
    }
    free(hide(malloc(3 * MIB)));
}

/* One load and unload; a block made inside is freed outside, after the unload. */
static void load(const char *path, int i)
{
    void *(*make)(size_t);
    void *library = dlopen(path, i % 2 ? RTLD_NOW : RTLD_LAZY);
    if (library == NULL)
        FAIL("dlopen: %s", dlerror());
    void *address = dlsym(library, "early_block");
    CHECK(address != NULL, "early_block is not in %s", path);
    memcpy(&make, &address, sizeof make);
    size_t n = (size_t)(i * 131) % 50000 + 1;
    void *p = make(n);
    CHECK(dlclose(library) == 0, "dlclose");
    verify(p, n, n, "block of a library that is gone");
    free(p);
    CHECK(dlopen("/no/such/library.so", RTLD_NOW) == NULL, "dlopen of nothing");
    CHECK(dlerror() != NULL, "dlerror"); /* its text is allocated, for each thread */
}

static const char *path;

static void *load_in_thread(void *argument)
{
    load(path, (int)(intptr_t)argument);
    void *p = early_block(1000); /* the linked copy's thread-local storage */
    free(p);
    return NULL;
}

int main(int argc, char **argv)
{
    start();
    CHECK(argc > 1, "usage: early LIBRARY [COUNT]");
    path = argv[1];
    int count = argc > 2 ? atoi(argv[2]) : 500;
    atexit(at_exit);
    for (int i = 0; i < count; i++)
        load(path, i);
    for (int i = 0; i < count; i += 2) {
        pthread_t thread[2];
        for (int k = 0; k < 2; k++)
            CHECK(pthread_create(&thread[k], NULL, load_in_thread, (void *)(intptr_t)(i + k)) == 0,
                  "pthread_create");
        for (int k = 0; k < 2; k++)
            pthread_join(thread[k], NULL);
    }
    printf("early: ok, %d loads, validate %s\n", count * 2, validate());
    return 0;
}
