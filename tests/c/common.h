/*
 * What the test programs share: checks that never allocate, patterns that
 * show which block was damaged, and raw readings of /proc.
 *
 * Every program exits 0 when all holds; otherwise it prints one line that
 * begins with its own name and exits 1. With USLUB_EXPECT=1 in the environment
 * the program must really run on uslub, and what glibc lacks must be there.
 *
 * By hand:  cc -O2 -g -pthread -o /tmp/api tests/c/api.c && /tmp/api
 */
#ifndef USLUB_TESTS_COMMON_H
#define USLUB_TESTS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define UNUSED __attribute__((unused))

/* A line on stderr without stdio's buffers and without allocation. */
UNUSED __attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[512];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    size_t length = n < 0 ? 0 : (size_t)n;
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t w = write(2, line + done, length - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            break;
        done += (size_t)w;
    }
}

#define FAIL(...)                                                     \
    do {                                                              \
        say("%s:%d: failed (errno %d)", __FILE__, __LINE__, errno);   \
        say("  " __VA_ARGS__);                                        \
        _exit(1);                                                     \
    } while (0)

#define CHECK(condition, ...)                                         \
    do {                                                              \
        if (__builtin_expect(!(condition), 0)) {                      \
            say("%s:%d: not so: %s", __FILE__, __LINE__, #condition); \
            FAIL(__VA_ARGS__);                                        \
        }                                                             \
    } while (0)

/* The compiler must neither know where a pointer came from nor drop a pair. */
UNUSED static void *hide(const void *p)
{
    void *q = (void *)(uintptr_t)p;
    __asm__ volatile("" : "+r"(q) : : "memory");
    return q;
}

UNUSED static size_t opaque(size_t n)
{
    __asm__ volatile("" : "+r"(n));
    return n;
}

UNUSED static int on_uslub(void)
{
    const char *value = getenv("USLUB_EXPECT");
    return value != NULL && strcmp(value, "1") == 0;
}

/* First thing in main: with USLUB_EXPECT=1, malloc must be uslub's. */
UNUSED static void start(void)
{
    Dl_info info;
    if (!on_uslub())
        return;
    void *address = dlsym(RTLD_DEFAULT, "malloc");
    CHECK(address != NULL && dladdr(address, &info) != 0, "malloc cannot be found");
    CHECK(strstr(info.dli_fname, "uslub") != NULL, "USLUB_EXPECT=1, but malloc is in %s",
          info.dli_fname);
}

/* A time that is `n` on a machine of usual speed; USLUB_SLOW says how many times slower this one is. */
UNUSED static unsigned slowed(unsigned n)
{
    const char *value = getenv("USLUB_SLOW");
    int factor = value == NULL ? 1 : atoi(value);
    return factor > 1 ? n * (unsigned)factor : n;
}

/* At quiescence: uslub's own invariants, where the allocator offers the call. */
UNUSED static const char *validate(void)
{
    void *address = dlsym(RTLD_DEFAULT, "uslub_validate");
    if (address == NULL)
        return "absent";
    int (*call)(void);
    memcpy(&call, &address, sizeof call);
    int result = call();
    CHECK(result == 0, "uslub_validate() returned %d", result);
    return "ok";
}

/* A small generator: one state a thread, never 0. */
UNUSED static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    return x * 0x2545f4914f6cdd1dULL;
}

/* Sizes from 1 to 2^bits, every power of two as likely as the others. */
UNUSED static size_t log_size(uint64_t *state, unsigned bits)
{
    uint64_t r = next_random(state);
    size_t top = (size_t)1 << ((r >> 32) % bits);
    return top + (r & 0xffffffff) % top + (((r >> 60) & 1) && top * 2 == (size_t)1 << bits);
}

UNUSED static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

/* The pattern: word i is seed + i * odd; a tail is the head of the next word. */
#define PATTERN_STEP 0x9e3779b97f4a7c15ULL

UNUSED static void fill(void *p, size_t n, uint64_t seed)
{
    unsigned char *b = (unsigned char *)p;
    size_t i = 0;
    uint64_t word = seed;
    for (; i + 8 <= n; i += 8, word += PATTERN_STEP)
        memcpy(b + i, &word, 8);
    memcpy(b + i, &word, n - i);
}

/* Offset of the first wrong byte, or n. */
UNUSED static size_t first_wrong(const void *p, size_t n, uint64_t seed)
{
    const unsigned char *b = (const unsigned char *)p;
    size_t i = 0;
    uint64_t word = seed, found;
    for (; i + 8 <= n; i += 8, word += PATTERN_STEP) {
        memcpy(&found, b + i, 8);
        if (found != word)
            break;
    }
    for (size_t k = 0; k < 8 && i + k < n; k++)
        if (b[i + k] != (unsigned char)(word >> (8 * k)))
            return i + k;
    return n;
}

UNUSED static void verify(const void *p, size_t n, uint64_t seed, const char *what)
{
    size_t at = first_wrong(p, n, seed);
    CHECK(at == n, "%s: block %p of %zu bytes is damaged at offset %zu (byte is %02x)", what,
          (void *)(uintptr_t)p, n, at, ((const unsigned char *)p)[at]);
}

UNUSED static int all_zero(const void *p, size_t n)
{
    const unsigned char *b = (const unsigned char *)p;
    return n == 0 || (b[0] == 0 && memcmp(b, b + 1, n - 1) == 0);
}

/* A line of /proc/self/status in KiB (VmRSS, VmSize, …), read on the stack. */
UNUSED static long status_kib(const char *key)
{
    char text[4096];
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY);
    if (fd < 0)
        return -1;
    long n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[n > 0 ? n : 0] = 0;
    const char *line = strstr(text, key);
    return line == NULL ? -1 : strtol(line + strlen(key) + 1, NULL, 10);
}

UNUSED static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

UNUSED static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        continue;
}

#endif
