// Proves that C++ lives on this allocator: every form of operator new and
// delete, bad_alloc and the new-handler, containers, blocks that change
// threads, exceptions, objects built before main, thread_local destructors.
#include "common.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

// Built before main; its blocks are checked in main and freed after main.
struct Early {
    std::vector<std::unique_ptr<std::string>> words;
    std::map<int, std::vector<int>> table;
    Early()
    {
        for (int i = 0; i < 1000; i++) {
            words.push_back(std::make_unique<std::string>(size_t(i), char('a' + i % 26)));
            table[i % 37].push_back(i);
        }
    }
    void check() const
    {
        for (int i = 0; i < 1000; i++)
            CHECK(*words[size_t(i)] == std::string(size_t(i), char('a' + i % 26)),
                  "a string built before main is damaged: %d", i);
        CHECK(table.size() == 37, "a map built before main is damaged");
    }
    ~Early() { check(); }
};
Early early;

template <size_t N, size_t A> struct alignas(A) Block {
    unsigned char bytes[N];
};

template <class T> void typed_forms()
{
    std::vector<T *> kept;
    for (int i = 0; i < 200; i++) {
        T *one = i % 2 ? new T : new (std::nothrow) T;
        T *many = i % 2 ? new T[size_t(i % 9 + 1)] : new (std::nothrow) T[size_t(i % 9 + 1)];
        CHECK(one && many, "new gave null");
        CHECK(uintptr_t(hide(one)) % alignof(T) == 0, "new is misaligned: %p", (void *)one);
        CHECK(uintptr_t(hide(many)) % alignof(T) == 0, "new[] is misaligned: %p", (void *)many);
        memset((void *)one, i, sizeof(T));
        memset((void *)many, i, sizeof(T) * size_t(i % 9 + 1));
        kept.push_back(one);
        delete[] many;
    }
    for (int i = 0; i < 200; i++) {
        CHECK(kept[size_t(i)]->bytes[sizeof(T) - 1] == (unsigned char)i, "block %d is damaged", i);
        delete kept[size_t(i)];
    }
}

void raw_forms()
{
    for (size_t n = 0; n < 8 * MIB; n += n / 2 + 1) {
        void *p[6] = {operator new(n), operator new[](n), operator new(n, std::nothrow),
                      operator new[](n, std::nothrow), operator new(n), operator new[](n)};
        for (void *q : p) {
            CHECK(hide(q), "operator new(%zu)", n);
            memset(hide(q), 0x3c, n);
        }
        operator delete(p[0]);
        operator delete[](p[1]);
        operator delete(p[2], std::nothrow);
        operator delete[](p[3], std::nothrow);
        operator delete(p[4], n);
        operator delete[](p[5], n);
        for (size_t a = 1; a <= MIB; a *= 8) {
            std::align_val_t al{a};
            void *q[6] = {operator new(n, al), operator new[](n, al),
                          operator new(n, al, std::nothrow), operator new[](n, al, std::nothrow),
                          operator new(n, al), operator new[](n, al)};
            for (void *x : q) {
                CHECK(hide(x) && uintptr_t(x) % a == 0, "operator new(%zu, align %zu): %p", n, a, x);
                memset(hide(x), 0x3d, n);
            }
            operator delete(q[0], al);
            operator delete[](q[1], al);
            operator delete(q[2], al, std::nothrow);
            operator delete[](q[3], al, std::nothrow);
            operator delete(q[4], n, al);
            operator delete[](q[5], n, al);
        }
    }
    operator delete(nullptr);
}

int handled;
void handler()
{
    if (++handled == 3)
        std::set_new_handler(nullptr);
}

void too_much()
{
    for (size_t n : {size_t(PTRDIFF_MAX), size_t(PTRDIFF_MAX) + 1, SIZE_MAX - 8192, size_t(1) << 60}) {
        n = opaque(n);
        int caught = 0;
        try { hide(operator new(n)); } catch (const std::bad_alloc &) { caught++; }
        try { hide(operator new[](n)); } catch (const std::bad_alloc &) { caught++; }
        try { hide(operator new(n, std::align_val_t{64})); } catch (const std::bad_alloc &) { caught++; }
        CHECK(caught == 3, "new of %zu bytes threw %d times of 3", n, caught);
        CHECK(!hide(operator new(n, std::nothrow)), "nothrow new of %zu bytes", n);
        CHECK(!hide(operator new(n, std::align_val_t{64}, std::nothrow)), "aligned nothrow new");
    }
    try {
        std::vector<int> v;
        v.resize(opaque(SIZE_MAX / 16));
        FAIL("a vector of %zu ints was made", v.size());
    } catch (const std::bad_alloc &) {
    } catch (const std::length_error &) {
    }
    std::set_new_handler(handler);
    bool threw = false;
    try { hide(operator new(opaque(PTRDIFF_MAX))); } catch (const std::bad_alloc &) { threw = true; }
    CHECK(threw && handled == 3, "the new-handler ran %d times, not 3", handled);
}

void containers()
{
    std::mt19937 random(7);
    std::map<std::string, std::vector<int>> tree;
    std::unordered_map<int, std::string> hash;
    std::deque<std::string> queue;
    std::list<std::shared_ptr<int>> list;
    std::multiset<int> set;
    size_t sum = 0, want = 0;
    for (int i = 0; i < 60000; i++) {
        int key = int(random() % 5000);
        tree[std::to_string(key) + " is a key too long for the small-string buffer"].push_back(i);
        hash[key] += char('a' + i % 26);
        queue.push_back(std::string(size_t(key % 200), 'q'));
        want += size_t(key % 200);
        if (queue.size() > 1000) {
            sum += queue.front().size();
            queue.pop_front();
        }
        list.push_front(std::make_shared<int>(i));
        if (list.size() > 500)
            list.pop_back();
        set.insert(key);
    }
    for (auto &s : queue)
        sum += s.size();
    CHECK(sum == want, "strings in a deque: %zu, not %zu", sum, want);
    size_t entries = 0, letters = 0;
    for (auto &e : tree)
        entries += e.second.size();
    for (auto &e : hash)
        letters += e.second.size();
    CHECK(entries == 60000 && letters == 60000 && set.size() == 60000, "containers lost entries");
    CHECK(*list.front() == 59999 && *list.back() == 59500, "the list is damaged");
    std::ostringstream text;
    for (int i = 0; i < 20000; i++)
        text << i << ' ';
    CHECK(text.str().size() == 108890, "the stream has %zu letters", text.str().size());
}

// Blocks travel through a queue; the consumer frees what the producer made.
void exchange()
{
    std::mutex lock;
    std::condition_variable ready;
    std::deque<std::unique_ptr<std::vector<uint64_t>>> queue;
    std::atomic<uint64_t> sum{0};
    const int producers = 3, consumers = 3, each = 20000;
    std::vector<std::thread> threads;
    for (int t = 0; t < producers; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < each; i++) {
                auto v = std::make_unique<std::vector<uint64_t>>(size_t(i % 100 + 1), uint64_t(i + t));
                std::lock_guard<std::mutex> hold(lock);
                queue.push_back(std::move(v));
                ready.notify_one();
            }
        });
    for (int t = 0; t < consumers; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < each; i++) {
                std::unique_lock<std::mutex> hold(lock);
                ready.wait(hold, [&] { return !queue.empty(); });
                auto v = std::move(queue.front());
                queue.pop_front();
                hold.unlock();
                CHECK(std::count(v->begin(), v->end(), v->front()) == long(v->size()), "damaged vector");
                sum += v->front();
            }
        });
    for (auto &t : threads)
        t.join();
    uint64_t want = 3 * (uint64_t(each) * (each - 1) / 2) + (0 + 1 + 2) * uint64_t(each);
    CHECK(sum == want, "exchanged %lu, not %lu", (unsigned long)sum, (unsigned long)want);
}

std::atomic<int> destroyed{0};
struct Local {
    std::vector<std::string> strings;
    std::unique_ptr<int[]> big{new int[30000]};
    ~Local()
    {
        std::string more(1000, 'x'); // the allocator must work this late
        CHECK(strings.size() == 100 && more.size() == 1000, "thread_local is damaged");
        destroyed++;
    }
};

void thread_locals()
{
    for (int round = 0; round < 20; round++) {
        std::vector<std::thread> threads;
        for (int t = 0; t < 8; t++)
            threads.emplace_back([] {
                thread_local Local local;
                for (int i = 0; i < 100; i++)
                    local.strings.emplace_back(size_t(i * 11), 'l');
            });
        for (auto &t : threads)
            t.join();
    }
    CHECK(destroyed == 160, "%d thread_local objects were destroyed, not 160", destroyed.load());
}

struct Trouble : std::runtime_error {
    std::vector<int> load;
    Trouble(const std::string &why, int n) : std::runtime_error(why), load(size_t(n), n) {}
};

void dive(int depth)
{
    std::string held(size_t(depth * 7 + 20), 'h');
    std::unique_ptr<char[]> more(new char[size_t(depth * 100 + 1)]);
    if (depth == 0)
        throw Trouble("from the deep, with a text that needs a block of its own", 300);
    dive(depth - 1);
    CHECK(held[0] == 'h', "unreachable");
}

void exceptions()
{
    std::vector<std::thread> threads;
    std::mutex lock;
    std::vector<std::exception_ptr> caught;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < 500; i++) {
                try {
                    dive(i % 20);
                } catch (const Trouble &) {
                    std::lock_guard<std::mutex> hold(lock);
                    caught.push_back(std::current_exception()); // freed by another thread
                }
            }
        });
    for (auto &t : threads)
        t.join();
    CHECK(caught.size() == 2000, "%zu exceptions of 2000", caught.size());
    for (auto &e : caught) {
        try {
            std::rethrow_exception(e);
        } catch (const Trouble &x) {
            CHECK(std::accumulate(x.load.begin(), x.load.end(), 0) == 90000, "exception is damaged");
        }
    }
}

} // namespace

int main()
{
    start();
    early.check();
    typed_forms<Block<1, 1>>();
    typed_forms<Block<24, 8>>();
    typed_forms<Block<100, 1>>();
    typed_forms<Block<64, 64>>();
    typed_forms<Block<4096, 4096>>();
    typed_forms<Block<100000, 32>>();
    typed_forms<Block<65536, 65536>>();
    raw_forms();
    too_much();
    containers();
    exchange();
    thread_locals();
    exceptions();
    printf("cxx: ok, validate %s\n", validate());
    return 0;
}
