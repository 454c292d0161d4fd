/*
 * A setting that readers look at without a lock: the old one is freed when the last of them has left.
 * liburcu says when that is.
 *
 *   cc -o rcu rcu.c $(pkg-config --cflags --libs uslub liburcu) -pthread
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <urcu.h>

#include <uslub.h>

struct setting {
    long value;
    long twice;
};

static struct uslub_cache *settings;
static struct setting *current;
static atomic_bool done;
static atomic_long looks, torn;

static void *reader(void *unused)
{
    (void)unused;
    rcu_register_thread();
    while (!atomic_load(&done)) {
        rcu_read_lock();
        struct setting *setting = rcu_dereference(current);
        if (setting->twice != 2 * setting->value)
            atomic_fetch_add(&torn, 1);
        rcu_read_unlock();
        atomic_fetch_add(&looks, 1);
    }
    rcu_unregister_thread();
    return NULL;
}

static void set(long value)
{
    struct setting *setting = uslub_cache_alloc(settings, USLUB_GFP_KERNEL);
    if (!setting)
        return;
    setting->value = value;
    setting->twice = 2 * value;
    struct setting *old = current;
    rcu_assign_pointer(current, setting);
    uslub_cache_free_rcu(settings, old); /* null at first, which is ignored */
}

int main(void)
{
    struct uslub_cache_args args = { .size = sizeof(struct setting) };
    pthread_t readers[2];

    rcu_init();
    rcu_register_thread();
    if (uslub_set_call_rcu(call_rcu, rcu_barrier, synchronize_rcu))
        return 1;
    settings = uslub_cache_create("setting", &args);
    if (!settings)
        return 1;
    set(1);
    for (int i = 0; i < 2; i++)
        pthread_create(&readers[i], NULL, reader, NULL);
    for (long value = 2; value < 20000; value++)
        set(value);
    uslub_kfree_rcu(uslub_kmalloc(100000, USLUB_GFP_KERNEL));
    atomic_store(&done, true);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);

    uslub_cache_free_rcu(settings, current);
    uint64_t in_sheaves = 0;
    uslub_cache_stat(settings, "free_rcu_sheaf", &in_sheaves);
    size_t leaked = uslub_cache_destroy(settings); /* waits for all that was freed */
    rcu_unregister_thread();
    printf("%ld looks, %ld of them torn; %lu settings went by rcu sheaves; %zu leaked\n", atomic_load(&looks),
           atomic_load(&torn), (unsigned long)in_sheaves, leaked);
    return atomic_load(&torn) != 0 || leaked != 0 || in_sheaves == 0;
}
