// Containers, strings, exceptions, futures, aligned and failing operator new.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

struct alignas(128) Line {
    unsigned char bytes[128];
};

struct Node {
    std::string name;
    std::vector<std::shared_ptr<Node>> children;
};

static std::shared_ptr<Node> tree(int depth, const std::string &name)
{
    auto node = std::make_shared<Node>();
    node->name = name;
    for (int child = 0; depth > 0 && child < 4; child++)
        node->children.push_back(tree(depth - 1, name + "/" + std::to_string(child)));
    return node;
}

static std::size_t letters(const Node &node)
{
    std::size_t sum = node.name.size();
    for (const auto &child : node.children)
        sum += letters(*child);
    return sum;
}

static std::uint64_t containers(std::uint64_t seed)
{
    std::map<std::string, std::uint64_t> ordered;
    std::unordered_map<std::uint64_t, std::string> hashed;
    std::deque<std::string> queue;
    std::list<std::vector<int>> lists;
    std::uint64_t state = seed * 2654435761u + 1, sum = 0;
    for (int round = 0; round < 60000; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        auto number = state >> 33;
        auto text = "number " + std::to_string(number % 20000);
        ordered[text] += number;
        hashed[number % 30000] += text[text.size() - 1];
        queue.push_back(text);
        if (queue.size() > 500)
            queue.pop_front();
        if (round % 10 == 0)
            lists.emplace_back(number % 300, round);
        if (lists.size() > 200)
            lists.pop_front();
        try {
            if (number % 50 == 0)
                throw std::runtime_error(text);
        } catch (const std::runtime_error &error) {
            sum += std::string(error.what()).size();
        }
    }
    for (const auto &[text, number] : ordered)
        sum = sum * 31 + number + text.size();
    for (std::uint64_t key = 0; key < 30000; key++)
        if (auto found = hashed.find(key); found != hashed.end())
            sum = sum * 31 + found->second.size();
    for (const auto &list : lists)
        sum += list.size();
    return sum + queue.front().size();
}

int main()
{
    std::vector<std::future<std::uint64_t>> futures;
    for (std::uint64_t seed = 1; seed <= 4; seed++)
        futures.push_back(std::async(std::launch::async, containers, seed));
    for (auto &future : futures)
        std::cout << future.get() << '\n';

    std::cout << letters(*tree(6, "root")) << '\n';

    std::vector<std::unique_ptr<Line>> lines;
    for (int line = 0; line < 1000; line++) {
        lines.push_back(std::make_unique<Line>());
        if (reinterpret_cast<std::uintptr_t>(lines.back().get()) % alignof(Line))
            return 1;
    }
    volatile std::size_t too_much = std::size_t(1) << 62;
    if (operator new(too_much, std::nothrow))
        return 2;
    try {
        std::cout << operator new(too_much) << '\n';
        return 3;
    } catch (const std::bad_alloc &) {
        std::cout << "no memory for 2^62 bytes\n";
    }

    std::ostringstream stream;
    for (int word = 0; word < 5000; word++)
        stream << "word" << word << (word % 7 ? " " : "; ");
    auto text = stream.str();
    std::regex pattern("word([0-9]*7);");
    auto matches = std::distance(std::sregex_iterator(text.begin(), text.end(), pattern),
                                 std::sregex_iterator());
    std::cout << matches << " matches\n";
    return 0;
}
