/*
 * uslub.hpp in every dialect: C++17 to 23, with and without exceptions, run-time type information and
 * <memory_resource>.
 */
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <uslub.hpp>

#if USLUB_VERSION_MAJOR != 0 || USLUB_VERSION_MINOR < 1
#error "the header is of another version"
#endif

static int failures;

static void need(bool holds, const char *what)
{
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", what);
        failures++;
    }
}

struct orders {
    static constexpr const char *name = "orders";
};

struct order {
    int number;
    char text[52];
};

/* The number of caches with a name. */
static unsigned long caches(const char *name)
{
    char line[512];
    unsigned long sum = 0, active = 0;
    std::FILE *file = std::tmpfile();
    uslub_slabinfo(fileno(file));
    std::rewind(file);
    while (std::fgets(line, sizeof line, file)) {
        char found[64];
        if (std::sscanf(line, "%63s %lu", found, &active) == 2 && !std::strcmp(found, name))
            sum++;
    }
    std::fclose(file);
    return sum;
}

/// A class with a `new` of its own, which objects of a cache do not use.
struct node {
    int number = 1;

    static void *operator new(std::size_t bytes)
    {
        return ::operator new(bytes);
    }

    static void operator delete(void *memory)
    {
        ::operator delete(memory);
    }
};

int main()
{
    char version[32];
    std::snprintf(version, sizeof version, "%d.%d.%d", USLUB_VERSION_MAJOR, USLUB_VERSION_MINOR, USLUB_VERSION_PATCH);
    need(!std::strcmp(version, uslub_version()), "the library is of the header's version");

    {
        uslub::cache<node> nodes{"node"};
        need(nodes.make()->number == 1, "a class with an operator new of its own");
    }
    need(caches("orders") == 0, "no cache before the first use");
    {
        std::list<order, uslub::allocator<order, orders>> book;
        for (int i = 0; i < 1000; i++)
            book.push_back(order{i, ""});
        need(caches("orders") == 1, "the nodes have a cache of the name");
        auto copy = book;
        need(copy.size() == 1000 && copy.back().number == 999, "a copy");
        std::vector<order, uslub::allocator<order, orders>> flat(book.begin(), book.end());
        need(flat.size() == 1000 && flat[500].number == 500, "arrays");
        using pair = std::pair<const int, int>;
        std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, uslub::allocator<pair, orders>> map;
        for (int i = 0; i < 1000; i++)
            map[i] = i * i;
        need(map.at(30) == 900, "an unordered map");
        need(book.get_allocator() == copy.get_allocator(), "allocators are equal");
    }

    std::vector<int, uslub::allocator<int>> numbers(1000, 7);
    need(numbers[999] == 7, "the plain allocator");

    uslub::cache<std::string> texts{"text"};
    auto one = texts.make("one");
    auto many = texts.make_many(100, "many");
    auto aside = texts.prefill(3);
    need(*one == "one" && many.size() == 100 && *aside.make("aside") == "aside", "a cache");
    texts.free_many(std::move(many));
    need(texts.stats().object_size == sizeof(std::string), "figures");

#if defined(__cpp_lib_memory_resource)
    uslub::memory_resource index{"index"}, plain;
    std::pmr::map<int, int> squares{&index};
    squares[3] = 9;
    need(squares.at(3) == 9 && index.is_equal(index) && !index.is_equal(plain), "a memory resource");
    std::puts("with memory_resource");
#else
    std::puts("without memory_resource");
#endif

#if defined(__cpp_exceptions)
    bool thrown = false;
    try {
        uslub::cache<int> wrong{""};
    } catch (const std::invalid_argument &) {
        thrown = true;
    }
    need(thrown, "a bad name is thrown");
#endif
    std::puts(failures ? "failed" : "ok");
    return failures != 0;
}
