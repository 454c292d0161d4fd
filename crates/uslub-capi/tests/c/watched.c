/*
 * Objects of a cache, for valgrind and the sanitizers. The first argument names the bug. Without
 * one, objects change their sizes, and "threads" passes objects from thread to thread.
 */
#include <uslub/slab.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS 500

static struct kmem_cache *cache;

__attribute__((noinline)) static char *take(void)
{
    char *object = kmem_cache_alloc(cache, GFP_KERNEL);
    /* Not a tail call: this function shall be in the stack. */
    __asm__ volatile("" : "+r"(object));
    return object;
}

static void *work(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        int *p = kmem_cache_alloc(cache, GFP_KERNEL);
        for (int j = 0; j < 10; j++)
            p[j] = i;
        kmem_cache_free(cache, p);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t others[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&others[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(others[i], NULL);
}

/* Each byte is set before the next call. */
static void sizes(void)
{
    size_t bytes = 20;
    char *p = kmalloc_array(10, 2, GFP_KERNEL);
    int nowhere = open("/dev/null", O_WRONLY);

    for (int i = 0; i < 200; i++) {
        memset(p, i, bytes);
        bytes = 20 + (size_t)i * 37 % 900;
        p = krealloc(p, bytes, GFP_KERNEL);
        if (!p || ksize(p) < bytes)
            puts("too small");
        uslub_dump_object(p, nowhere);
    }
    kfree_sensitive(p);
}

int main(int argc, char **argv)
{
    const char *bug = argc > 1 ? argv[1] : "none";
    /* Neither the pointer nor the bytes are known to the compiler. */
    volatile char *volatile p;

    cache = kmem_cache_create("session", 40, 8, 0, NULL);
    if (!strcmp(bug, "threads")) {
        threads();
        puts("end");
        return 0;
    }
    sizes();
    p = take();
    p[0] = 1;
    if (!strcmp(bug, "over"))
        p[40] = 1;
    if (!strcmp(bug, "under"))
        p[-1] = 1;
    if (!strcmp(bug, "unset") && p[5])
        puts("set");
    if (!strcmp(bug, "leak")) {
        p = NULL;
        take();
        puts("end");
        return 0;
    }
    kmem_cache_free(cache, (void *)p);
    if (!strcmp(bug, "after"))
        p[1] = 2;
    kmem_cache_destroy(cache);
    puts("end");
    return 0;
}
