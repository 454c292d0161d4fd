/*
 * A statically linked program in C++ whose malloc is uslub's: containers, threads, exceptions, children, and calls of
 * the C library that the preloaded library wraps. Prints "ok" and the allocator's own figures.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void need(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", what);
        std::_Exit(1);
    }
}

static void containers()
{
    std::map<int, std::string> texts;
    for (int i = 0; i < 2000; i++)
        texts[i] = std::string(100 + i % 300, 'x');
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; k++)
        threads.emplace_back([k] {
            pthread_setname_np(pthread_self(), "worker");
            for (int i = 0; i < 20000; i++)
                delete new std::string(40 + (i + k) % 100, 'y');
        });
    for (auto &thread : threads)
        thread.join();
    std::size_t bytes = 0;
    for (auto &text : texts)
        bytes += text.second.size();
    need(bytes > 2000 * 100, "texts are whole");
    try {
        throw std::string("an exception whose text does not fit into the object itself");
    } catch (const std::string &text) {
        need(text.size() == 59, "an exception arrives");
    }
}

static void children()
{
    pid_t child = fork();
    if (child == 0) {
        std::vector<std::string> more(100, std::string(1000, 'c'));
        std::_Exit(more.size() == 100 ? 0 : 1);
    }
    int status = -1;
    need(waitpid(child, &status, 0) == child && status == 0, "the child of a fork allocates");
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", static_cast<char *>(nullptr));
        _exit(3);
    }
    need(waitpid(child, &status, 0) == child && status == 0, "vfork and exec");
    FILE *output = popen("echo hello", "r");
    char line[16] = "";
    need(output && std::fgets(line, sizeof line, output) && !std::strcmp(line, "hello\n"), "popen");
    need(pclose(output) == 0, "pclose");
}

/* A change of the group must reach all threads: only the C library can do that. */
static void rights()
{
    if (geteuid() != 0)
        return;
    std::atomic<int> step{0};
    gid_t seen = 0;
    std::thread other([&] {
        while (step != 1)
            usleep(1000);
        seen = getegid();
    });
    need(setegid(1) == 0, "setegid");
    step = 1;
    other.join();
    need(seen == 1, "the other thread has the new group");
    need(setegid(0) == 0, "setegid back");
}

static void limits()
{
    struct rlimit limit;
    need(getrlimit(RLIMIT_CORE, &limit) == 0 && setrlimit(RLIMIT_CORE, &limit) == 0, "setrlimit");
    need(prctl(PR_SET_NAME, "renamed") == 0, "prctl");
    void *block = std::realloc(std::calloc(100, 10), 100000);
    need(malloc_usable_size(block) >= 100000, "realloc");
    std::free(block);
    need(posix_memalign(&block, 256, 300) == 0 && reinterpret_cast<std::size_t>(block) % 256 == 0, "alignment");
    std::free(block);
}

int main()
{
    containers();
    children();
    rights();
    limits();
    std::puts("ok");
    std::fflush(stdout);
    malloc_stats();
    return 0;
}
