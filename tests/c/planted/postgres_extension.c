/*
 * Functions for PostgreSQL 15 with a bug each: planted() allocates 40 bytes, frees them, and writes
 * into them. many() allocates 3,000 objects, frees them, and reads each once more. Built without
 * PostgreSQL's headers:
 *
 *     cc -g -O1 -shared -fPIC -o postgres_extension.so postgres_extension.c
 *     CREATE FUNCTION planted() RETURNS int AS '/path/postgres_extension' LANGUAGE C;
 */
#include <stdint.h>
#include <stdlib.h>

/* What PostgreSQL 15 compares with its own before it loads a library. */
static const struct {
    int bytes, version, arguments, keys, name_bytes, by_value;
    char variant[32];
} magic = { sizeof magic, 1500, 100, 32, 64, 1, "PostgreSQL" };

const void *Pg_magic_func(void)
{
    return &magic;
}

static const struct {
    int version;
} convention = { 1 };

const void *pg_finfo_planted(void)
{
    return &convention;
}

const void *pg_finfo_many(void)
{
    return &convention;
}

__attribute__((noinline)) static char *planted_keep(void)
{
    char *p = malloc(40);
    __asm__ volatile("" : "+r"(p));
    return p;
}

__attribute__((noinline)) static void planted_drop(char *p)
{
    volatile char *byte = p + 8;

    /* Hides that the byte is the object's. */
    __asm__ volatile("" : "+r"(byte));
    free(p);
    *byte = 0x12;
}

uintptr_t planted(void *call)
{
    (void)call;
    planted_drop(planted_keep());
    for (int i = 0; i < 100; i++)
        planted_keep();
    return 7;
}

__attribute__((noinline)) static void many_drop(char *p)
{
    volatile char *byte = p + 8;

    __asm__ volatile("" : "+r"(byte));
    free(p);
    (void)*byte;
}

uintptr_t many(void *call)
{
    char *kept[3000];

    (void)call;
    for (int i = 0; i < 3000; i++)
        kept[i] = planted_keep();
    for (int i = 0; i < 3000; i++)
        many_drop(kept[i]);
    return 3000;
}
