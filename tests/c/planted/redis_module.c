/*
 * A module for redis with two bugs: "planted.keep" allocates 40 bytes, "planted.drop" writes the
 * byte behind them and frees them. "planted.many" allocates 3,000 objects, frees them, and reads each
 * once more. Built without redis's header, whose functions are looked up by name:
 *
 *     cc -g -O1 -shared -fPIC -o redis_module.so redis_module.c
 */
#include <stddef.h>

typedef struct context context;
typedef int (*command)(context *, void **, int);

static int (*get_function)(const char *, void *);
static void *(*allocate)(size_t);
static void (*release)(void *);
static int (*reply)(context *, long long);
static char *kept;

static int planted_keep(context *ctx, void **words, int n)
{
    (void)words, (void)n;
    kept = allocate(40);
    return reply(ctx, 1);
}

static int planted_drop(context *ctx, void **words, int n)
{
    (void)words, (void)n;
    ((volatile char *)kept)[40] = 0x12;
    release(kept);
    return reply(ctx, 2);
}

static char *many[3000];

__attribute__((noinline)) static void many_keep(int i)
{
    many[i] = allocate(40);
}

__attribute__((noinline)) static void many_drop(int i)
{
    volatile char *byte = many[i] + 8;

    /* Hides that the byte is the object's. */
    __asm__ volatile("" : "+r"(byte));
    release(many[i]);
    (void)*byte;
}

static int planted_many(context *ctx, void **words, int n)
{
    (void)words, (void)n;
    for (int i = 0; i < 3000; i++)
        many_keep(i);
    for (int i = 0; i < 3000; i++)
        many_drop(i);
    return reply(ctx, 3);
}

int RedisModule_OnLoad(context *ctx, void **words, int n)
{
    void (*set_attributes)(context *, const char *, int, int);
    int (*create)(context *, const char *, command, const char *, int, int, int);

    (void)words, (void)n;
    get_function = *(int (**)(const char *, void *))ctx;
    if (get_function("RedisModule_SetModuleAttribs", &set_attributes)
        || get_function("RedisModule_CreateCommand", &create)
        || get_function("RedisModule_Alloc", &allocate)
        || get_function("RedisModule_Free", &release)
        || get_function("RedisModule_ReplyWithLongLong", &reply))
        return 1;
    set_attributes(ctx, "planted", 1, 1);
    return create(ctx, "planted.keep", planted_keep, "fast", 0, 0, 0)
        || create(ctx, "planted.drop", planted_drop, "fast", 0, 0, 0)
        || create(ctx, "planted.many", planted_many, "fast", 0, 0, 0);
}
