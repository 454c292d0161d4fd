/*
 * A tree whose nodes, names and index each have memory of their own.
 *
 *   c++ -std=c++17 -o nodes nodes.cc $(pkg-config --cflags --libs uslub)
 */
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <vector>

#include <uslub.hpp>

namespace {

struct node {
    int value;
    uslub::cache<node>::pointer left, right;

    explicit node(int value) : value(value)
    {
        if (value < 0)
            throw std::invalid_argument("no negative values");
    }
};

struct alignas(64) counter {
    long count = 0;
};

int failures = 0;

void check(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        failures++;
    }
}

void insert(uslub::cache<node> &nodes, uslub::cache<node>::pointer &at, int value)
{
    if (!at)
        at = nodes.make(value);
    else
        insert(nodes, value < at->value ? at->left : at->right, value);
}

} // namespace

int main()
{
    {
        uslub::cache<node> nodes{"node"};
        uslub::cache<node>::pointer root{nullptr, {nodes.get()}};
        for (int i = 0; i < 1000; i++)
            insert(nodes, root, i * 7919 % 1000);
        check(nodes.stats().live_objs == 1000, "a node each");

        try {
            auto bad = nodes.make(-1);
            check(false, "a constructor that throws makes nothing");
        } catch (const std::invalid_argument &) {
        }
        check(nodes.stats().live_objs == 1000, "what a constructor left by throwing is free");

        // Memory first, then work that cannot fail for want of it.
        auto more = nodes.prefill(10);
        check(more.size() >= 10, "ten are set aside");
        std::vector<uslub::cache<node>::pointer> made;
        for (int i = 0; i < 10; i++)
            made.push_back(more.make(i));
        nodes.free_many(std::move(made));
        more.refill(300);
        check(more.size() >= 300, "a sheaf can be refilled beyond its capacity");

        auto many = nodes.make_many(500, 3);
        check(many.size() == 500 && many[499]->value == 3, "five hundred of a kind");
        nodes.free_many(std::move(many));
        try {
            uslub::cache<node> nameless{""};
            check(false, "a cache has a name");
        } catch (const std::invalid_argument &) {
        }
    }
    {
        uslub_cache_args args = {};
        args.limit = 64 << 10;
        uslub::cache<counter> counters{"counter", args};
        std::vector<uslub::cache<counter>::pointer> all;
        try {
            for (;;)
                all.push_back(counters.make());
        } catch (const std::bad_alloc &) {
        }
        check(all.size() == 1024, "64 KiB hold 1024 counters");
        check(!counters.try_make(USLUB_GFP_NOWAIT), "and no more");
        check(reinterpret_cast<std::uintptr_t>(all[7].get()) % 64 == 0, "each begins a cache line");
    }
    {
        uslub::memory_resource names{"names"};
        std::pmr::vector<std::pmr::string> list{&names};
        for (int i = 0; i < 2000; i++)
            list.emplace_back("a name that is too long to live inside a string: " + std::to_string(i));
        check(list[1999].find("1999") != std::pmr::string::npos, "names keep their text");
        check(!names.is_equal(*std::pmr::new_delete_resource()), "a resource is equal to its like only");
    }
    std::map<int, std::vector<int, uslub::allocator<int>>, std::less<>,
             uslub::allocator<std::pair<const int, std::vector<int, uslub::allocator<int>>>>>
        index;
    for (int i = 0; i < 5000; i++)
        index[i % 17].push_back(i);
    check(index[16].back() == 4997, "containers on the allocator work");
    try {
        long *memory = uslub::allocator<long>().allocate(~std::size_t{0} / 8);
        check(memory == nullptr, "there is no such memory");
    } catch (const std::bad_alloc &) {
    }

    check(uslub_check() == 0, "all structures hold");
    if (failures == 0)
        std::puts("all holds");
    return failures != 0;
}
