/*
 * A Redis module with two bugs, for docs/observing.md: a leak, and a use after free.
 *
 *   cc -O0 -shared -fPIC -o sessions.so sessions.c
 *   redis-server --loadmodule ./sessions.so
 *
 *   SESSION.TOUCH        opens a session and closes it; forgets to free one of ten
 *   SESSION.EXPIRE       closes a session, and then calls its handler: a use after free
 *
 * Without optimisation, so that the compiler keeps both. The file declares itself what it needs of
 * the module interface.
 */
#include <stdlib.h>
#include <string.h>

typedef int (*command)(void *ctx, void **argv, int argc);

static int (*reply)(void *ctx, long long number);

struct session {
    int (*on_close)(struct session *);
    char user[120];
    long long opened;
};

static long long opened;

static int on_close(struct session *s)
{
    return s->opened > 0;
}

static struct session *open_session(void)
{
    struct session *s = malloc(sizeof(*s));
    memset(s, 0, sizeof(*s));
    s->on_close = on_close;
    s->opened = ++opened;
    strcpy(s->user, "somebody");
    return s;
}

/* Wipes the session, as programs with secrets do. */
static void close_session(struct session *s)
{
    memset(s, 0, sizeof(*s));
    free(s);
}

static int touch(void *ctx, void **argv, int argc)
{
    (void)argv, (void)argc;
    struct session *s = open_session();
    if (s->opened % 10)
        close_session(s);
    return reply(ctx, opened);
}

static int expire(void *ctx, void **argv, int argc)
{
    (void)argv, (void)argc;
    struct session *volatile s = open_session();
    close_session(s);
    return reply(ctx, s->on_close(s));
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc)
{
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = ((void **)ctx)[0];
    int (*attributes)(void *, const char *, int, int);
    int (*create)(void *, const char *, command, const char *, int, int, int);
    get("RedisModule_SetModuleAttribs", &attributes);
    get("RedisModule_CreateCommand", &create);
    get("RedisModule_ReplyWithLongLong", &reply);
    attributes(ctx, "sessions", 1, 1);
    return create(ctx, "session.touch", touch, "fast", 0, 0, 0)
        || create(ctx, "session.expire", expire, "fast", 0, 0, 0);
}
