/*
 * A library that is loaded with RTLD_DEEPBIND by chain.c. Its run path is its own folder.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *deep_take(size_t n)
{
    return malloc(n);
}

void *deep_resize(void *p, size_t n)
{
    return realloc(p, n);
}

void deep_give(void *p)
{
    free(p);
}

/* What the C library allocates. */
char *deep_print(int number)
{
    char *text = NULL;
    return asprintf(&text, "%d", number) < 0 ? NULL : text;
}

/* Whether a library is found by the run path of its caller, which is this library. */
int deep_load(const char *name)
{
    void *library = dlopen(name == NULL ? "libdeep_friend.so" : name, RTLD_NOW | RTLD_DEEPBIND);
    return library != NULL && dlclose(library) == 0;
}
