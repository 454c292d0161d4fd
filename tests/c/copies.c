/*
 * Proves that several copies of uslub live in one process: the one that serves the program, and copies that are
 * loaded from other files and called by name, from threads that fork, end and trim. Each keeps its own
 * blocks; a block that is given to another copy ends the process with a message (in a child).
 *
 *   copies LIBRARY…    each a copy of libuslub_malloc.so, or any library with malloc and free of its own
 */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define MOST 8
#define THREADS 4

static struct {
    void *(*take)(size_t);
    void (*give)(void *);
    int (*trim)(size_t);
    int (*check)(void);
} copy[MOST];
static int copies;

static void *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    CHECK(address != NULL, "%s: %s", name, dlerror());
    return address;
}

static void load(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL, "%s", dlerror());
    void *a = find(library, "malloc"), *b = find(library, "free"), *c = find(library, "malloc_trim"),
         *d = find(library, "uslub_validate");
    memcpy(&copy[copies].take, &a, sizeof a);
    memcpy(&copy[copies].give, &b, sizeof b);
    memcpy(&copy[copies].trim, &c, sizeof c);
    memcpy(&copy[copies].check, &d, sizeof d);
    for (int i = 0; i < copies; i++)
        CHECK(copy[i].take != copy[copies].take, "copies %d and %d are one", i, copies);
    copies++;
}

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument * 17 + 1;
    struct {
        void *p;
        size_t n;
        int of;
    } slot[64];
    memset(slot, 0, sizeof slot);
    for (int i = 0; i < 60000; i++) {
        unsigned s = (unsigned)(next_random(&random) % 64);
        if (slot[s].p != NULL) {
            verify(slot[s].p, slot[s].n, s, "block of a copy");
            copy[slot[s].of].give(slot[s].p);
            slot[s].p = NULL;
        } else {
            slot[s].of = (int)(next_random(&random) % (unsigned)copies);
            slot[s].n = log_size(&random, i % 100 == 0 ? 20 : 12);
            slot[s].p = hide(copy[slot[s].of].take(slot[s].n));
            CHECK(slot[s].p != NULL, "copy %d: %zu bytes", slot[s].of, slot[s].n);
            fill(slot[s].p, slot[s].n, s);
        }
        if (i % 20000 == 9999)
            copy[next_random(&random) % (unsigned)copies].trim(0);
    }
    for (unsigned s = 0; s < 64; s++)
        if (slot[s].p != NULL)
            copy[slot[s].of].give(slot[s].p);
    return NULL;
}

static void expect(int wanted, void (*run)(void), const char *what)
{
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        run();
        exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : 0) == wanted, "%s: status %x", what, status);
}

static void all_of_it(void)
{
    alarm(slowed(30));
    for (int i = 0; i < copies; i++)
        work((void *)(uintptr_t)i);
}

static void mix_up(void)
{
    void *p = hide(copy[0].take(100));
    copy[copies - 1].give(p);
}

int main(int argc, char **argv)
{
    start();
    void *a = find(RTLD_DEFAULT, "malloc"), *b = find(RTLD_DEFAULT, "free"), *c = find(RTLD_DEFAULT, "malloc_trim"),
         *d = find(RTLD_DEFAULT, "uslub_validate");
    memcpy(&copy[0].take, &a, sizeof a);
    memcpy(&copy[0].give, &b, sizeof b);
    memcpy(&copy[0].trim, &c, sizeof c);
    memcpy(&copy[0].check, &d, sizeof d);
    copies = 1;
    CHECK(argc > 1 && argc <= MOST, "copies LIBRARY...");
    for (int i = 1; i < argc; i++)
        load(argv[i]);
    pthread_t thread[THREADS];
    for (uintptr_t t = 0; t < THREADS; t++)
        CHECK(pthread_create(&thread[t], NULL, work, (void *)t) == 0, "pthread_create");
    for (int i = 0; i < 10; i++)
        expect(0, all_of_it, "a child with all copies");
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    expect(SIGABRT, mix_up, "a block of another copy");
    for (int i = 0; i < copies; i++)
        CHECK(copy[i].check() == 0, "copy %d is not whole", i);
    printf("copies: ok, %d\n", copies);
    return 0;
}
