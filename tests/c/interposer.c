/*
 * A library that stands between a program and libc, as libfaketime does: it
 * wraps what tells the time and the like, and allocates in each wrapper, small
 * and huge. INTERPOSER_CLOCK makes its clock stand still ("frozen") or jump by
 * years, back and ahead ("jumping").
 *
 * Built as a shared library; interposed.c is its program. As an audit library
 * (LD_AUDIT) it follows each binding of a symbol.
 */
#include "common.h"
#include <link.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

static int calls;
static __thread int inside __attribute__((tls_model("initial-exec")));

/* How often a wrapper was entered from outside. */
EXPORT int interposer_calls(void)
{
    return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

/* What wrappers do at their first call, and these do at each. */
static void allocate(void)
{
    if (inside)
        return;
    inside = 1;
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    static const size_t size[] = {24, 3000, 70000, 600000};
    for (int i = 0; i < 4; i++) {
        char *block = hide(malloc(size[i]));
        block = hide(realloc(block, size[i] + size[i] / 2));
        if (block == NULL)
            _exit(9);
        block[0] = 1;
        free(block);
        free(hide(calloc(3, size[i])));
    }
    inside = 0;
}

static long jump(void)
{
    static int turn;
    const char *clock = getenv("INTERPOSER_CLOCK");
    if (clock == NULL || *clock != 'j')
        return 0;
    long years = (__atomic_fetch_add(&turn, 1, __ATOMIC_SEQ_CST) * 7) % 40 - 20;
    return years * 365 * 24 * 3600;
}

static int is_frozen(void)
{
    const char *clock = getenv("INTERPOSER_CLOCK");
    return clock != NULL && *clock == 'f';
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
    allocate();
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0) {
        out->tv_sec += jump();
        if (is_frozen())
            *out = (struct timespec){1000000000, 0};
    }
    return result;
}

EXPORT int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return result;
}

EXPORT time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}

EXPORT int sched_getcpu(void)
{
    allocate();
    unsigned cpu = 0;
    syscall(SYS_getcpu, &cpu, NULL, NULL);
    return (int)cpu;
}

/* The next definition of a wrapped function. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

EXPORT unsigned long getauxval(unsigned long key)
{
    static __typeof__(&getauxval) next;
    allocate();
    if (next == NULL)
        next = NEXT(getauxval);
    return next(key);
}

EXPORT pthread_t pthread_self(void)
{
    static __typeof__(&pthread_self) next;
    allocate();
    if (next == NULL)
        next = NEXT(pthread_self);
    return next();
}

EXPORT int sched_yield(void)
{
    allocate();
    return (int)syscall(SYS_sched_yield);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t count)
{
    allocate();
    return syscall(SYS_write, fd, bytes, count);
}

EXPORT int madvise(void *start, size_t bytes, int advice)
{
    allocate();
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

EXPORT int munmap(void *start, size_t bytes)
{
    allocate();
    return (int)syscall(SYS_munmap, start, bytes);
}

EXPORT void abort(void)
{
    allocate();
    _exit(7);
}

/* The audit interface: each binding is looked at, and left as it is. */
EXPORT unsigned la_version(unsigned version)
{
    return version;
}

EXPORT unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    (void)map;
    (void)space;
    (void)cookie;
    free(hide(malloc(100)));
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

EXPORT uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to,
                              unsigned *flags, const char *name)
{
    (void)index;
    (void)from;
    (void)to;
    (void)flags;
    free(hide(strdup(name)));
    return symbol->st_value;
}
