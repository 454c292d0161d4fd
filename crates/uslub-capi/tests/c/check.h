/*
 * What the test programs share. By hand, after `scripts/install-capi /tmp/uslub`:
 *
 *   cc -I/tmp/uslub/include -o /tmp/refused crates/uslub-capi/tests/c/refused.c /tmp/uslub/lib/libuslub.a -pthread
 */
#ifndef USLUB_CAPI_CHECK_H
#define USLUB_CAPI_CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uslub.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so (errno %d): %s\n", __FILE__, __LINE__, errno, #condition); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* What fails, with the error it must set. */
#define FAILS(expression, error)       \
    do {                               \
        errno = 0;                     \
        CHECK(!(expression));          \
        CHECK(errno == (error));       \
    } while (0)

/* What succeeds or does nothing leaves errno alone. */
#define LEAVES_ERRNO(statement)        \
    do {                               \
        errno = EXDEV;                 \
        statement;                     \
        CHECK(errno == EXDEV);         \
    } while (0)

#define K USLUB_GFP_KERNEL

__attribute__((unused)) static struct uslub_cache *cache_of(const char *name, size_t size)
{
    struct uslub_cache_args args = { .size = size };
    struct uslub_cache *cache = uslub_cache_create(name, &args);
    CHECK(cache);
    return cache;
}

__attribute__((unused)) static size_t live(struct uslub_cache *cache)
{
    struct uslub_cache_stats stats;
    CHECK(uslub_cache_get_stats(cache, &stats) == 0);
    return stats.live_objs;
}

#endif
