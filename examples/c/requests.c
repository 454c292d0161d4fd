/*
 * A server's requests in a cache of their own: one by one, in bulk, and promised beforehand.
 *
 *   cc -o requests requests.c $(pkg-config --cflags --libs uslub)
 */
#include <stdio.h>
#include <string.h>

#include <uslub.h>

struct request {
    int fd;
    char path[100];
};

/* What a request needs to go through a section that must not fail: three more of them. */
static int split(struct uslub_cache *requests, const struct request *request)
{
    struct uslub_sheaf *sheaf = uslub_cache_prefill(requests, USLUB_GFP_KERNEL, 3);
    if (!sheaf) {
        perror("prefill");
        return 1;
    }
    struct request *parts[3];
    for (int i = 0; i < 3; i++) {
        /* Cannot fail: it was set aside. */
        parts[i] = uslub_cache_alloc_from(requests, USLUB_GFP_NOSPIN, sheaf);
        *parts[i] = *request;
        parts[i]->fd += i;
    }
    uslub_cache_return(requests, USLUB_GFP_KERNEL, sheaf);
    for (int i = 0; i < 3; i++)
        uslub_cache_free(requests, parts[i]);
    return 0;
}

int main(void)
{
    struct uslub_cache_args args = {
        .size = sizeof(struct request),
        .flags = USLUB_CACHE_HWCACHE_ALIGN,
        .limit = 1 << 20, /* these requests never have more than 1 MiB */
    };
    struct uslub_cache *requests = uslub_cache_create("request", &args);
    if (!requests) {
        perror("cache");
        return 1;
    }

    struct request *one = uslub_cache_zalloc(requests, USLUB_GFP_KERNEL);
    if (!one) {
        perror("request");
        return 1;
    }
    strcpy(one->path, "/index.html");
    if (split(requests, one))
        return 1;
    uslub_cache_free(requests, one);

    void *batch[64];
    if (!uslub_cache_alloc_bulk(requests, USLUB_GFP_KERNEL, 64, batch)) {
        perror("batch");
        return 1;
    }

    struct uslub_cache_stats stats;
    uslub_cache_get_stats(requests, &stats);
    printf("%zu requests of %zu bytes are in use, in %zu slabs\n", stats.live_objs, stats.object_size,
           stats.num_slabs);
    fflush(stdout);
    uslub_slabinfo(1);

    uslub_cache_free_bulk(requests, 64, batch);
    return uslub_cache_destroy(requests) != 0;
}
