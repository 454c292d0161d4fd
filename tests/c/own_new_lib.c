/* A library with a malloc of its own that replaces C++'s `operator new`. As in jemalloc, `new` calls
 * its own function, and `delete` calls `free` by symbol, which another library may define. The C++
 * functions have their linker names here, so that C can define them. */
#include <stddef.h>

void *_Znwm(size_t bytes);
void _ZdlPv(void *object);
void free(void *object);
size_t malloc_usable_size(void *object);
int own_new_freed(void);
void __libc_free(void *object) __attribute__((weak));

static _Alignas(64) char pool[1 << 16];
static size_t used;
static int freed;

static int is_own(void *object)
{
    return (char *)object >= pool && (char *)object < pool + sizeof pool;
}

void *_Znwm(size_t bytes)
{
    char *object = pool + used + 64;
    *(size_t *)(object - sizeof(size_t)) = bytes;
    used += 64 + (bytes + 63) / 64 * 64;
    return object;
}

void _ZdlPv(void *object)
{
    free(object);
}

void free(void *object)
{
    if (is_own(object))
        freed++;
    else if (object && __libc_free)
        __libc_free(object);
}

size_t malloc_usable_size(void *object)
{
    return is_own(object) ? ((size_t *)object)[-1] : 0;
}

int own_new_freed(void)
{
    return freed;
}
