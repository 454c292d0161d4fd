/*
 * Proves that memory which the system refuses is NULL and ENOMEM, in every call, and nothing else: a child for
 * each call, or set of calls, that the kernel refuses from some moment on (mmap, mprotect, mremap, munmap, madvise).
 * What was had before keeps its contents, can be freed, and can be had again; realloc leaves the block as
 * it is. Where munmap or madvise is refused, nothing fails at all. Where only mmap is refused, a large block
 * may still come from the reserved range, which grows by mprotect.
 *
 * By hand:  USLUB_EXPECT=1 LD_PRELOAD=… ./refusals
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MAP = 1, PROTECT = 2, REMAP = 4, UNMAP = 8, ADVISE = 16 };
#define HELD 300

struct block {
    unsigned char *p;
    size_t n;
};

static struct block held[HELD];

static void take(struct block *b, size_t n)
{
    b->p = hide(malloc(n));
    CHECK(b->p != NULL, "malloc(%zu)", n);
    b->n = n;
    fill(b->p, n, n);
}

static void give(struct block *b)
{
    verify(b->p, b->n, b->n, "block");
    errno = 4711;
    free(b->p);
    CHECK(errno == 4711, "free changed errno");
    b->p = NULL;
}

static int lock_up(int refused)
{
    static const unsigned numbers[] = {SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise};
    struct sock_filter filter[16] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    unsigned short length = 1;
    for (int i = 0; i < 5; i++) {
        if ((refused & 1 << i) == 0)
            continue;
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Takes blocks of n bytes until there are none; returns how many. */
static unsigned exhaust(size_t n, void ***list)
{
    unsigned count = 0;
    for (;; count++) {
        errno = 0;
        void **p = hide(malloc(n));
        if (p == NULL)
            break;
        p[0] = *list;
        *list = p;
        CHECK(count < 4000000, "%zu bytes: it never ends", n);
    }
    CHECK(errno == ENOMEM, "malloc(%zu) failed with errno %d", n, errno);
    return count;
}

static void release(void **list)
{
    while (list != NULL) {
        void **next = list[0];
        free(list);
        list = next;
    }
}

static void every_call_fails(size_t n)
{
    void *mark = (void *)8, *p = mark;
    errno = 0;
    CHECK(hide(calloc(n, 2)) == NULL && errno == ENOMEM, "calloc(%zu, 2)", n);
    errno = 0;
    CHECK(posix_memalign(&p, 64, n) == ENOMEM && p == mark && errno == 0, "posix_memalign of %zu", n);
    CHECK(hide(aligned_alloc(4096, n)) == NULL && errno == ENOMEM, "aligned_alloc of %zu", n);
    errno = 0;
    CHECK(hide(memalign(1 << 20, n)) == NULL && errno == ENOMEM, "memalign of %zu", n);
    errno = 0;
    CHECK(hide(valloc(n)) == NULL && errno == ENOMEM, "valloc(%zu)", n);
    for (int i = 0; i < HELD; i += 37) {
        errno = 0;
        void *q = hide(realloc(held[i].p, n));
        CHECK(q == NULL && errno == ENOMEM, "realloc of %zu to %zu", held[i].n, n);
        verify(held[i].p, held[i].n, held[i].n, "block that could not grow");
    }
}

/* A block that may be refused; otherwise its first `zero` bytes are zero and all n may be written. */
static void may_fail(unsigned char *p, size_t n, size_t align, size_t zero, const char *call)
{
    if (p == NULL) {
        CHECK(errno == ENOMEM, "%s of %zu failed with errno %d", call, n, errno);
        return;
    }
    CHECK((uintptr_t)p % align == 0, "%s of %zu at %p", call, n, (void *)p);
    CHECK(zero == 0 || all_zero(p, zero), "%s of %zu is not zero", call, n);
    fill(p, n, n);
    verify(p, n, n, call);
    free(p);
}

static void every_call_may_fail(size_t n)
{
    may_fail(hide(malloc(n)), n, 16, 0, "malloc");
    may_fail(hide(calloc(n, 2)), 2 * n, 16, 2 * n, "calloc");
    may_fail(hide(aligned_alloc(4096, n)), n, 4096, 0, "aligned_alloc");
    may_fail(hide(memalign(1 << 20, n)), n, 1 << 20, 0, "memalign");
    may_fail(hide(valloc(n)), n, 4096, 0, "valloc");
    for (int i = 0; i < HELD; i += 37) {
        errno = 0;
        void *q = hide(realloc(held[i].p, n));
        CHECK(q != NULL || errno == ENOMEM, "realloc of %zu to %zu", held[i].n, n);
        if (q != NULL)
            held[i].p = q;
        verify(held[i].p, held[i].n, held[i].n, "block that was to grow");
    }
}

static void child(int refused)
{
    uint64_t random = 99 + (unsigned)refused;
    for (int i = 0; i < HELD; i++)
        take(&held[i], log_size(&random, 18) + 8);
    if (lock_up(refused) != 0) {
        say("refusals: skipped: seccomp filters are not to be had here (errno %d)", errno);
        _exit(77);
    }
    if (refused == MAP)
        every_call_may_fail(8 * MIB);
    if (refused == (MAP | PROTECT | REMAP)) {
        /* a mapping of its own is refused at once */
        every_call_fails(64 * MIB);
    }
    if ((refused & (MAP | PROTECT)) == (MAP | PROTECT)) {
        void **list = NULL;
        unsigned large = exhaust(200000, &list), small = exhaust(100, &list), other = exhaust(3000, &list);
        every_call_fails(300000);
        release(list);
        /* what was there once is there again */
        list = NULL;
        unsigned again = exhaust(100, &list);
        CHECK(again >= small, "%u of 100 bytes, before %u (%u, %u)", again, small, large, other);
        release(list);
    }
    if (refused == REMAP) { /* grows another way, or not at all; the contents stay */
        struct block b;
        take(&b, 3 * MIB);
        void *q = hide(realloc(b.p, 30 * MIB));
        if (q != NULL)
            b.p = q;
        give(&b);
    }
    for (int i = 0; i < HELD; i++)
        give(&held[i]);
    if ((refused & (MAP | PROTECT | REMAP)) == 0)
        for (int round = 0; round < 20; round++) {
            for (int i = 0; i < HELD; i++)
                take(&held[i], log_size(&random, 22) + 8);
            for (int i = 0; i < HELD; i++)
                give(&held[i]);
            malloc_trim(0);
            void *p = hide(calloc(1, MIB));
            CHECK(p != NULL && all_zero(p, MIB), "calloc after a refused purge");
            free(p);
        }
    malloc_trim(0);
    validate();
    _exit(0);
}

int main(void)
{
    start();
    static const int sets[] = {MAP, PROTECT, REMAP, UNMAP, ADVISE, MAP | PROTECT, MAP | PROTECT | REMAP,
        UNMAP | ADVISE, MAP | PROTECT | REMAP | UNMAP | ADVISE};
    int done = 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork");
        if (pid == 0)
            child(sets[i]);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFEXITED(status), "set %d ended by signal %d", sets[i], WTERMSIG(status));
        if (WEXITSTATUS(status) == 77)
            break;
        CHECK(WEXITSTATUS(status) == 0, "set %d", sets[i]);
        done++;
    }
    printf("refusals: ok, %d sets, validate %s\n", done, validate());
    return 0;
}
