/* Every call of the malloc family on a stack that was painted before: none may use more than 1 KiB of it.
 *
 * All is done once before anything is measured: the loader's own use of the stack at the first call of a function is
 * no matter of the library's. */
#define _GNU_SOURCE
#include "common.h"
#include <malloc.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#define STACK 16384
#define LIMIT 1024
#define MOST 40000

static unsigned char stack[STACK] __attribute__((aligned(64)));
static void *held[MOST];
static size_t sizes[MOST];

/* Calls `work(argument)` on the painted stack; returns how many bytes of it were used. */
#ifdef __x86_64__
static size_t used_by(void (*work)(long), long argument)
{
    static size_t dirty = STACK;
    memset(stack + STACK - dirty, 0xa5, dirty);
    unsigned char *top = stack + STACK;
    __asm__ volatile("movq %%rsp, %%rbx\n\tmovq %[top], %%rsp\n\tcall *%[work]\n\tmovq %%rbx, %%rsp"
                     : "+D"(argument) : [top] "r"(top), [work] "r"(work)
                     : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    const uint64_t *words = (const uint64_t *)stack;
    size_t low = 0;
    while (low < STACK / 8 && words[low] == 0xa5a5a5a5a5a5a5a5)
        low++;
    dirty = STACK - low * 8;
    return dirty;
}
#endif

static long counter;
static size_t size_of(long i) { return 1 + (size_t)(i * 7919 % 3000); }

static void none(long i) { (void)i; __asm__ volatile("" ::: "memory"); }
static void allocate(long i) { held[i] = malloc(sizes[i]); }
static void release(long i) { free(held[i]); held[i] = NULL; }
static void zeroed(long i) { held[i] = calloc(1, sizes[i]); }
static void resized(long i) { held[i] = realloc(held[i], sizes[i]); }
static void aligned(long i) { held[i] = memalign(64 << i % 8, sizes[i]); }
static void page(long i) { held[i] = valloc(sizes[i]); }
static void asked(long i) { counter += (long)malloc_usable_size(held[i]); }

static int measures;
static size_t worst;
static const char *worst_of = "none";
static void on(const char *name, void (*work)(long), long i)
{
#ifdef __x86_64__
    if (!measures)
        return work(i);
    size_t used = used_by(work, i);
    if (used > worst) {
        worst = used;
        worst_of = name;
    }
#else
    (void)name;
    work(i);
#endif
}

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* So many objects, of sizes that a function says; each is allocated, asked for its size, resized, and freed in another order. */
static void round_of(long count, size_t (*size)(long), void (*first)(long))
{
    for (long i = 0; i < count; i++) {
        sizes[i] = size(i);
        on("an allocation", first, i);
        on("malloc_usable_size", asked, i);
    }
    for (long i = 0; i < count; i += 3) {
        sizes[i] = size(i + 1) * 2 + 1;
        on("realloc", resized, i);
    }
    for (long i = 0; i < count; i++)
        on("free", release, i * 7 % count);
}

static size_t one_word(long i) { (void)i; return 16; }
static size_t large(long i) { return (size_t)(8 << 10) + (size_t)(i * 4099 % (240 << 10)); }
static size_t huge(long i) { return (size_t)(300 << 10) + (size_t)(i % 8 * (1 << 20)); }

static void all(void)
{
    round_of(4000, size_of, allocate);
    round_of(4000, one_word, allocate);
    round_of(200, large, allocate);
    round_of(60, huge, allocate);
    round_of(1000, size_of, zeroed);
    round_of(1000, size_of, aligned);
    round_of(100, size_of, page);
    /* In order: whole slabs leave. */
    for (long turn = 0; turn < 2; turn++) {
        for (long i = 0; i < MOST; i++) {
            sizes[i] = turn ? 48 : 512;
            on("malloc", allocate, i);
        }
        for (long i = 0; i < MOST; i++)
            on("free", release, i);
    }
    /* What was cached is cold by now, and what was free may go back to the system. */
    for (long turn = 0; turn < 6; turn++) {
        pause_ms(40);
        round_of(400, turn % 2 ? size_of : large, allocate);
    }
}

int main(void)
{
    if (malloc(SIZE_MAX / 2 - counter) != NULL)
        return 2;
    all();
    measures = 1;
    all();
#ifdef __x86_64__
    /* What the caller needs: its frame, and the address that it returns to. */
    size_t own = used_by(none, 0) + 64;
    if (getenv("SMALL_STACK_SHOW"))
        printf("%s: %zu bytes, %zu of them not the library's\n", worst_of, worst, own);
    if (worst > LIMIT + own)
        return printf("small_stack: %s takes %zu bytes of stack\n", worst_of, worst - own), 1;
#endif
    puts("small_stack: ok");
    return 0;
}
