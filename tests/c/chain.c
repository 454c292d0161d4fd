/*
 * Proves that uslub is one of several libraries:
 *
 *   chain calls      under chain_lib.c, preloaded before or after uslub: each call that both wrap is seen once and works
 *   chain names      the inner names of glibc's malloc are the same malloc; LD_PRELOAD may bring a wrapper (malloc_lib.c)
 *   chain connect    behind torsocks, which wraps connect and syscall: no connection is made past it
 *   chain deep LIB   the library LIB (deep_lib.c), loaded with RTLD_DEEPBIND, and the program free what the other allocated
 */
#include "common.h"
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

static void *find(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    CHECK(address != NULL, "%s is not there", name);
    return address;
}

/* ---- calls ---- */

static int (*seen)(const char *);

#define ONCE(name, ...)                                                             \
    do {                                                                            \
        int before = seen(name);                                                    \
        __VA_ARGS__;                                                                \
        CHECK(seen(name) == before + 1, "%s was seen %d times", name, seen(name) - before); \
    } while (0)

static int child(void *argument)
{
    free(hide(malloc(100)));
    return *(int *)argument;
}

static void calls(void)
{
    static char stack[64 << 10] __attribute__((aligned(64)));
    struct rlimit limit, other;
    char name[32] = "";
    int status, code = 7;
    pid_t pid = 0;
    void *address = find("chain_calls");
    memcpy(&seen, &address, sizeof seen);
    ONCE("syscall", CHECK(syscall(SYS_getppid) == getppid(), "syscall"));
    ONCE("syscall", CHECK(syscall(SYS_unshare, 0) == 0, "unshare by its number"));
    ONCE("syscall", CHECK(syscall(SYS_setns, -1, 0) == -1 && errno == EBADF, "setns by its number"));
    ONCE("prctl", CHECK(prctl(PR_SET_NAME, "renamed") == 0, "PR_SET_NAME"));
    ONCE("prctl", CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, "renamed") == 0, "the name is '%s'", name));
    CHECK(getrlimit(RLIMIT_CORE, &limit) == 0, "getrlimit");
    limit.rlim_cur = 0;
    ONCE("setrlimit", CHECK(setrlimit(RLIMIT_CORE, &limit) == 0, "setrlimit"));
    ONCE("prlimit", CHECK(prlimit(0, RLIMIT_CORE, &limit, &other) == 0 && other.rlim_cur == 0, "prlimit"));
    ONCE("unshare", CHECK(unshare(0) == 0, "unshare of nothing"));
    ONCE("setns", CHECK(setns(-1, 0) == -1 && errno == EBADF, "setns of no file"));
    ONCE("clone", pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &code));
    CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7, "a child that shares memory: %#x", status);
    ONCE("clone", pid = clone(child, stack + sizeof stack, SIGCHLD, &code));
    CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7, "a child that does not: %#x", status);
    int before = seen("vfork");
    pid = vfork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a child of vfork: %#x", status);
    CHECK(seen("vfork") == before + 1, "vfork was seen %d times", seen("vfork") - before);
    void *library = NULL;
    ONCE("dlopen", library = dlopen("libm.so.6", RTLD_NOW));
    CHECK(library != NULL && dlclose(library) == 0, "dlopen");
    for (int i = 0; i < 100; i++)
        free(hide(malloc((size_t)i * 50)));
    printf("chain: ok, calls, validate %s\n", validate());
    fflush(stdout);
    _exit(0);
}

/* ---- names ---- */

#define INNER(name, result, ...)             \
    result (*name)(__VA_ARGS__);             \
    do {                                     \
        void *found = find("__" #name);      \
        memcpy(&name, &found, sizeof found); \
    } while (0)

static void names(void)
{
    INNER(libc_malloc, void *, size_t);
    INNER(libc_calloc, void *, size_t, size_t);
    INNER(libc_realloc, void *, void *, size_t);
    INNER(libc_free, void, void *);
    INNER(libc_memalign, void *, size_t, size_t);
    INNER(libc_valloc, void *, size_t);
    INNER(libc_pvalloc, void *, size_t);
    for (size_t n = 1; n < 2 * MIB; n = n * 3 / 2 + 1) {
        void *p[] = {libc_malloc(n), libc_calloc(1, n), libc_realloc(NULL, n), libc_memalign(256, n), libc_valloc(n), libc_pvalloc(n)};
        for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
            CHECK(p[i] != NULL, "%zu bytes of call %zu", n, i);
            CHECK(malloc_usable_size(p[i]) >= n, "%zu bytes of call %zu are not the program's", n, i);
            fill(p[i], n, i);
        }
        CHECK((uintptr_t)p[3] % 256 == 0 && (uintptr_t)p[4] % 4096 == 0 && (uintptr_t)p[5] % 4096 == 0, "alignment");
        for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
            p[i] = realloc(p[i], n + 100);
            CHECK(p[i] != NULL, "realloc");
            verify(p[i], n, i, "block of an inner name");
            free(p[i]);
            p[i] = malloc(n);
            fill(p[i], n, i);
            p[i] = libc_realloc(p[i], 2 * n);
            verify(p[i], n, i, "block that an inner name resized");
            libc_free(p[i]);
        }
    }
    if (on_uslub()) {
        INNER(libc_cfree, void, void *);
        INNER(posix_memalign, int, void **, size_t, size_t);
        INNER(libc_reallocarray, void *, void *, size_t, size_t);
        void *p = NULL;
        CHECK(posix_memalign(&p, 64, 1000) == 0 && (uintptr_t)p % 64 == 0, "__posix_memalign");
        p = libc_reallocarray(p, 100, 100);
        CHECK(p != NULL && malloc_usable_size(p) >= 10000, "__libc_reallocarray");
        libc_cfree(p);
    }
    void *counts = dlsym(RTLD_DEFAULT, "wrapper_taken");
    if (counts != NULL) {
        unsigned long (*taken)(void);
        memcpy(&taken, &counts, sizeof taken);
        unsigned long before = taken();
        free(hide(malloc(10)));
        free(hide(calloc(10, 10)));
        Dl_info info;
        int is_first = dladdr(find("malloc"), &info) != 0 && strstr(info.dli_fname, "malloc_lib") != NULL;
        unsigned long expected = is_first ? 2 : 0;
        CHECK(taken() == before + expected, "two calls are %lu for the wrapper", taken() - before);
        printf("chain: a wrapper was %s\n", is_first ? "first" : "second");
    }
    printf("chain: ok, names, validate %s\n", validate());
}

/* ---- connect ---- */

static void connects(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(server >= 0 && client >= 0, "two sockets");
    CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && listen(server, 1) == 0, "a server");
    CHECK(getsockname(server, (struct sockaddr *)&address, &length) == 0, "its address");
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) != 0, "connect went past torsocks");
    CHECK(syscall(SYS_connect, client, &address, sizeof address) != 0, "syscall went past torsocks");
    printf("chain: ok, connect, validate %s\n", validate());
}

/* ---- deep ---- */

static void deep(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library != NULL, "%s", dlerror());
    void *(*take)(size_t);
    void *(*resize)(void *, size_t);
    void (*give)(void *);
    char *(*print)(int);
    int (*load)(const char *);
    void *symbols[] = {dlsym(library, "deep_take"), dlsym(library, "deep_resize"), dlsym(library, "deep_give"),
        dlsym(library, "deep_print"), dlsym(library, "deep_load")};
    memcpy(&take, &symbols[0], sizeof take);
    memcpy(&resize, &symbols[1], sizeof resize);
    memcpy(&give, &symbols[2], sizeof give);
    memcpy(&print, &symbols[3], sizeof print);
    memcpy(&load, &symbols[4], sizeof load);
    for (int i = 0; i < 2000; i++) {
        size_t n = (size_t)i * 37 + 1;
        void *p = hide(take(n)), *q = hide(malloc(n));
        fill(p, n, 1);
        fill(q, n, 2);
        q = hide(resize(q, n + 50));
        p = hide(realloc(p, n + 50));
        verify(p, n, 1, "block of the library");
        verify(q, n, 2, "block of the program");
        free(p);
        give(q);
        char *text = print(i);
        CHECK(atoi(text) == i, "the library printed '%s'", text);
        free(text);
    }
    CHECK(load(NULL), "the library cannot load what lies at its own run path");
    CHECK(dlopen("/no/such/library", RTLD_NOW | RTLD_DEEPBIND) == NULL && dlerror() != NULL, "a library that is not there");
    CHECK(dlclose(library) == 0, "dlclose");
    printf("chain: ok, deep, validate %s\n", validate());
}

int main(int argc, char **argv)
{
    if (dlsym(RTLD_DEFAULT, "wrapper_taken") == NULL)
        start();
    if (argc == 2 && strcmp(argv[1], "calls") == 0)
        calls();
    else if (argc == 2 && strcmp(argv[1], "names") == 0)
        names();
    else if (argc == 2 && strcmp(argv[1], "connect") == 0)
        connects();
    else if (argc == 3 && strcmp(argv[1], "deep") == 0)
        deep(argv[2]);
    else
        FAIL("chain calls|names|connect|deep LIB");
    return 0;
}
