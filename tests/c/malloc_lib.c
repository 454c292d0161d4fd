/*
 * A wrapper of malloc as programs have them: it counts, and gets at the malloc behind it by glibc's inner names.
 */
#include <stddef.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static unsigned long taken, given;

__attribute__((visibility("default"))) unsigned long wrapper_taken(void)
{
    return taken;
}

__attribute__((visibility("default"))) unsigned long wrapper_given(void)
{
    return given;
}

void *malloc(size_t n)
{
    __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}

void *calloc(size_t count, size_t size)
{
    __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return __libc_calloc(count, size);
}

void *realloc(void *p, size_t n)
{
    return __libc_realloc(p, n);
}

void free(void *p)
{
    __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}
