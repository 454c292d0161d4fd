/*
 * Proves that what the kernel offers for a program's own memory harms nothing when that memory is malloc's:
 *
 *   sealed        mseal: such pages can never be unmapped, replaced or remapped, neither used nor free
 *   keys          memory protection keys, closed while others allocate
 *   buffers       buffers registered with io_uring, freed before they are withdrawn
 *   faults        userfaultfd: a thread of the program fills the pages
 *   not_forked    MADV_DONTFORK: a child does not have the pages
 *   wiped         MADV_WIPEONFORK: a child finds zeroes
 *   no_new_code   PR_SET_MDWE, and threads after it
 *   merged        PR_SET_MEMORY_MERGE
 *   mapped_over   a file mapped over a part, which is then freed
 *   read_only     a part that is still read-only when it is freed
 *   own_stacks    stacks of threads, which end before the memory is freed
 *
 * Each runs in a child; what this kernel does not have is passed.
 */
#include "common.h"
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PAGE ((size_t)4096)
#define ABSENT 77
#define LIVE 400

enum { MSEAL = 462, SET_MDWE = 65, SET_MEMORY_MERGE = 67, WIPE_ON_FORK = 18 };

/* Allocates and frees objects of up to 300 kB at random; each keeps its pattern. */
static void work(unsigned steps, uint64_t random)
{
    static __thread unsigned char *objects[LIVE];
    static __thread size_t sizes[LIVE];
    for (unsigned step = 0; step < steps + LIVE; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned at = step < steps ? (unsigned)(random >> 40) % LIVE : step - steps;
        if (objects[at] != NULL) {
            verify(objects[at], sizes[at], at, "object");
            free(objects[at]);
            objects[at] = NULL;
        }
        if (step >= steps)
            continue;
        sizes[at] = (size_t)(random >> 20) % (step % 50 ? 600 : 300000) + 1;
        objects[at] = hide(malloc(sizes[at]));
        CHECK(objects[at] != NULL, "malloc of %zu", sizes[at]);
        fill(objects[at], sizes[at], at);
    }
}

static void *worker(void *seed)
{
    work(10000, (uintptr_t)seed);
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    for (uintptr_t t = 0; t < 4; t++)
        CHECK(pthread_create(&all[t], NULL, worker, (void *)(t + 1)) == 0, "a thread");
    for (int t = 0; t < 4; t++)
        pthread_join(all[t], NULL);
}

static unsigned char *pages(size_t n)
{
    unsigned char *p = hide(aligned_alloc(PAGE, n * PAGE));
    CHECK(p != NULL, "%zu pages", n);
    memset(p, 1, n * PAGE);
    return p;
}

/* Zeroed memory is zero, in the sizes that the features used. */
static void zeroes(void)
{
    for (size_t n = 1; n <= 1024; n *= 2) {
        unsigned char *p = hide(calloc(n, PAGE));
        CHECK(p != NULL && all_zero(p, n * PAGE), "calloc of %zu pages", n);
        memset(p, 2, n * PAGE);
        free(p);
    }
}

static int seal(unsigned char *p, size_t bytes)
{
    uintptr_t first = ((uintptr_t)p + PAGE - 1) & ~(PAGE - 1);
    return syscall(MSEAL, first, bytes & ~(PAGE - 1), 0) == 0;
}

static int sealed(void)
{
    for (unsigned n = 0; n < 20; n++) {
        unsigned char *p = pages((size_t)1 << n % 10);
        if (!seal(p, PAGE))
            return ABSENT;
        free(p);
    }
    work(20000, 1);
    unsigned char *p = hide(malloc(3 * MIB));
    fill(p, 3 * MIB, 3);
    CHECK(seal(p, MIB), "mseal");
    p = hide(realloc(p, 9 * MIB));
    CHECK(p != NULL, "realloc of sealed pages");
    verify(p, 3 * MIB, 3, "block after realloc");
    free(p);
    malloc_trim(0);
    work(20000, 2);
    zeroes();
    return 0;
}

static int keys(void)
{
    int key = pkey_alloc(0, 0);
    if (key < 0)
        return ABSENT;
    for (size_t n = 1; n < 30; n++) {
        unsigned char *p = pages(n);
        CHECK(pkey_mprotect(p, n * PAGE, PROT_READ | PROT_WRITE, key) == 0, "pkey_mprotect");
        pkey_set(key, PKEY_DISABLE_WRITE);
        work(500, n);
        pkey_set(key, 0);
        CHECK(pkey_mprotect(p, n * PAGE, PROT_READ | PROT_WRITE, 0) == 0, "pkey_mprotect");
        free(p);
    }
    pkey_free(key);
    return 0;
}

static int buffers(void)
{
    struct io_uring_params parameters;
    memset(&parameters, 0, sizeof parameters);
    int ring = (int)syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0)
        return ABSENT;
    for (size_t round = 0; round < 50; round++) {
        struct iovec vector[4];
        for (size_t i = 0; i < 4; i++) {
            vector[i].iov_len = PAGE * (i * 20 + 1) + round * 1000;
            vector[i].iov_base = hide(malloc(vector[i].iov_len));
            memset(vector[i].iov_base, 1, vector[i].iov_len);
        }
        if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, vector, 4) != 0)
            return ABSENT;
        for (int i = 0; i < 4; i++)
            free(vector[i].iov_base);
        work(500, round);
        CHECK(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0,
              "buffers are withdrawn");
    }
    return 0;
}

static void *pager(void *argument)
{
    static unsigned char page[4096] __attribute__((aligned(4096)));
    int fd = *(int *)argument;
    struct uffd_msg message;
    page[0] = 7;
    while (read(fd, &message, sizeof message) == sizeof message) {
        struct uffdio_copy copy;
        memset(&copy, 0, sizeof copy);
        copy.dst = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        copy.src = (uintptr_t)page;
        copy.len = PAGE;
        ioctl(fd, UFFDIO_COPY, &copy);
    }
    return NULL;
}

static int faults(void)
{
    static int fd;
    const size_t n = 64;
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    pthread_t thread;
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0 || sysconf(_SC_PAGESIZE) != (long)PAGE)
        return ABSENT;
    CHECK(pthread_create(&thread, NULL, pager, &fd) == 0, "a thread");
    unsigned char *p = pages(n);
    madvise(p, n * PAGE, MADV_DONTNEED);
    struct uffdio_register range = {
        .range = {(uintptr_t)p, n * PAGE},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    CHECK(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "the pages are registered");
    for (size_t at = 0; at < n; at++)
        CHECK(((volatile unsigned char *)p)[at * PAGE] == 7, "page %zu", at);
    CHECK(ioctl(fd, UFFDIO_UNREGISTER, &range.range) == 0, "the pages are withdrawn");
    free(p);
    work(20000, 3);
    return 0;
}

/* Pages with an advice on forks, and a child that works; `check` says whether it may look at them. */
static int advised(int advice, int back, int check)
{
    unsigned char *all[30];
    for (size_t n = 0; n < 30; n++) {
        all[n] = pages(n + 1);
        if (madvise(all[n], (n + 1) * PAGE, advice) != 0)
            return ABSENT;
    }
    pid_t child = fork();
    if (child == 0) {
        for (size_t n = 0; check && n < 30; n++) {
            CHECK(all_zero(all[n], (n + 1) * PAGE), "the pages of a child");
            free(all[n]);
        }
        work(20000, 4);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
    for (size_t n = 0; n < 30; n++) {
        madvise(all[n], (n + 1) * PAGE, back);
        free(all[n]);
    }
    work(20000, 5);
    return 0;
}

static int not_forked(void)
{
    return advised(MADV_DONTFORK, MADV_DOFORK, 0);
}

static int wiped(void)
{
    return advised(WIPE_ON_FORK, WIPE_ON_FORK + 1, 1);
}

static int no_new_code(void)
{
    if (prctl(SET_MDWE, 1, 0, 0, 0) != 0)
        return ABSENT;
    work(20000, 6);
    threads();
    return 0;
}

static int merged(void)
{
    if (prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) != 0)
        return ABSENT;
    work(50000, 7);
    return 0;
}

static int mapped_over(void)
{
    for (size_t size = MIB; size <= 8 * MIB; size *= 2) {
        /* One file each: the memory of the last may be in use. */
        int fd = memfd_create("features", 0);
        CHECK(fd >= 0 && ftruncate(fd, MIB) == 0, "a file");
        unsigned char *p = hide(aligned_alloc(PAGE, size));
        void *place = mmap(p, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        CHECK(place == p, "a file over the first MiB");
        memset(p, 3, size);
        free(p);
        work(20000, size);
        zeroes();
    }
    return 0;
}

static int read_only(void)
{
    unsigned char *p = hide(malloc(4 * MIB));
    memset(p, 1, 4 * MIB);
    uintptr_t first = ((uintptr_t)p + PAGE - 1) & ~(PAGE - 1);
    CHECK(mprotect((void *)(first + MIB), MIB, PROT_READ) == 0, "mprotect");
    free(p);
    work(20000, 8);
    p = hide(malloc(4 * MIB));
    memset(p, 2, 4 * MIB);
    free(p);
    return 0;
}

static int own_stacks(void)
{
    const size_t bytes = 256 * 1024;
    for (uintptr_t n = 0; n < 20; n++) {
        pthread_attr_t attributes;
        pthread_t thread;
        void *stack = pages(bytes / PAGE);
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, stack, bytes) == 0, "a stack");
        CHECK(pthread_create(&thread, &attributes, worker, (void *)n) == 0, "a thread");
        pthread_join(thread, NULL);
        free(stack);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} FEATURES[] = {
    {"sealed", sealed},         {"keys", keys},
    {"buffers", buffers},       {"faults", faults},
    {"not_forked", not_forked}, {"wiped", wiped},
    {"no_new_code", no_new_code}, {"merged", merged},
    {"mapped_over", mapped_over}, {"read_only", read_only},
    {"own_stacks", own_stacks},
};

int main(void)
{
    unsigned n = 0, absent = 0;
    start();
    for (; n < sizeof FEATURES / sizeof *FEATURES; n++) {
        pid_t child = fork();
        if (child == 0)
            _exit(FEATURES[n].run());
        int status;
        CHECK(waitpid(child, &status, 0) == child, "the child of %s", FEATURES[n].name);
        absent += status == ABSENT << 8;
        CHECK(status == 0 || status == ABSENT << 8, "%s ended with %#x", FEATURES[n].name, status);
    }
    printf("features: ok, %u of %u are here\n", n - absent, n);
    return 0;
}
