/*
 * Proves that no CPU number does harm, where the kernel's own library (the vDSO) says on which CPU a thread runs (no
 * restartable sequences): numbers that are sparse, beyond the CPUs that are there, refused, and another at every look,
 * while threads allocate, pass blocks on, change their affinity and flush everything.
 *
 * The library calls the vDSO by itself, so that no definition of sched_getcpu is asked. The program writes a jump to
 * a function of its own over the vDSO's, in its own copy of the page. Only on x86-64 the vDSO has this function.
 *
 *   cpus MODE    sparse, beyond, failing, wild
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#define THREADS 6
#define ROUNDS 20000
#define SLOTS 64

static enum { SPARSE, BEYOND, FAILING, WILD } mode;
static atomic_ulong asked;
static __thread uint64_t here = 1;

UNUSED static int number(void)
{
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    switch (mode) {
    case SPARSE:
        return (int)(here % 8) * 97 + 3;
    case BEYOND:
        return 100000 + (int)(here % 5) * 65536;
    case FAILING:
        return -1;
    default:
        return (int)(uint32_t)next_random(&here);
    }
}

#ifdef __x86_64__
static int getcpu_of_ours(unsigned *cpu, unsigned *node, void *unused)
{
    (void)unused;
    int n = number();
    if (mode == FAILING)
        return n;
    if (cpu != NULL)
        *cpu = (unsigned)n;
    if (node != NULL)
        *node = 0;
    return 0;
}

/* Whether the vDSO tells our numbers from now on. */
static int replace_getcpu(void)
{
    /* movabs rax, ADDRESS; jmp rax */
    unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
    void *vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
    unsigned char *function = vdso != NULL ? dlsym(vdso, "__vdso_getcpu") : NULL;
    if (function == NULL)
        return 0;
    /* The kernel changes the protection of its library as a whole only. */
    uintptr_t image = getauxval(AT_SYSINFO_EHDR), ours = (uintptr_t)getcpu_of_ours;
    size_t pages = 1;
    while (mprotect((void *)image, pages * 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        if (++pages > 16)
            return 0;
    memcpy(jump + 2, &ours, sizeof ours);
    memcpy(function, jump, sizeof jump);
    return 1;
}
#else
static int replace_getcpu(void)
{
    return 0;
}
#endif

static _Atomic(unsigned char *) shared[SLOTS];

static void *work(void *argument)
{
    uint64_t random = here = (uintptr_t)argument * 77 + 5;
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = log_size(&random, 12) + 16;
        unsigned char *p = hide(malloc(n));
        CHECK(p != NULL, "malloc(%zu)", n);
        memcpy(p, &n, sizeof n);
        fill(p + 8, n - 8, n);
        p = atomic_exchange(&shared[next_random(&random) % SLOTS], p);
        if (p != NULL) {
            memcpy(&n, p, sizeof n);
            verify(p + 8, n - 8, n, "block of another thread");
            free(p);
        }
        if (i % 5000 == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET((int)(next_random(&random) % 2), &one);
            sched_setaffinity(0, sizeof one, &one); /* where it may */
            malloc_trim(0);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    start();
    static const char *const modes[] = {"sparse", "beyond", "failing", "wild"};
    CHECK(argc == 2, "cpus MODE");
    int known = 0;
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(argv[1], modes[i]) == 0) {
            mode = i;
            known = 1;
        }
    CHECK(known, "unknown mode %s", argv[1]);
    int replaced = replace_getcpu();
    if (!replaced)
        say("cpus: skipped: the kernel's getcpu cannot be replaced here");
    pthread_t thread[THREADS];
    for (uintptr_t t = 0; t < THREADS; t++)
        CHECK(pthread_create(&thread[t], NULL, work, (void *)(t + 1)) == 0, "pthread_create");
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    for (int i = 0; i < SLOTS; i++)
        free(atomic_load(&shared[i]));
    malloc_trim(0);
    const char *looks = !replaced ? "unknown" : atomic_load(&asked) > 0 ? "many" : "no";
    printf("cpus: ok, %s looks, validate %s\n", looks, validate());
    return 0;
}
