/*
 * uslub for C++17 and later: object caches that own their objects' types, a memory resource, an allocator.
 *
 *     uslub::cache<node> nodes{"node"};
 *     auto root = nodes.make(1, 2);          // std::unique_ptr; freed to its cache
 *
 *     uslub::memory_resource names{"names"}; // its sizes are caches of their own: names-32, names-48, …
 *     std::pmr::vector<std::pmr::string> list{&names};
 *
 *     std::vector<int, uslub::allocator<int>> numbers;
 *
 *     struct orders { static constexpr const char *name = "orders"; };
 *     std::list<order, uslub::allocator<order, orders>> book; // its nodes are objects of the cache "orders"
 *
 * Where there is no memory std::bad_alloc is thrown; arguments that make no sense are std::invalid_argument. Without
 * exceptions (-fno-exceptions) a line on standard error says the same, and the process ends. Where the standard library
 * has no <memory_resource> (libc++ before 16) there is no uslub::memory_resource.
 */
#ifndef USLUB_HPP
#define USLUB_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "uslub.hpp needs C++17 or later: compile with -std=c++17. <uslub.h> is for older standards."
#endif

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <uslub.h>

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define USLUB_TRY_ try
#define USLUB_CATCH_ALL_ catch (...)
#define USLUB_RETHROW_ throw
#else
#define USLUB_TRY_ if (true)
#define USLUB_CATCH_ALL_ else
#define USLUB_RETHROW_ std::abort()
#endif

namespace uslub {

/** Throws an error; without exceptions says what it is and ends the process. */
template <class Error> [[noreturn]] inline void raise(const Error &error)
{
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    throw error;
#else
    std::fprintf(stderr, "uslub: %s\n", error.what());
    std::abort();
#endif
}

/** Memory, or an exception. */
inline void *checked(void *memory)
{
    if (memory == nullptr)
        raise(std::bad_alloc());
    return memory;
}

/** Allocates `bytes` aligned to `align`; throws std::bad_alloc. Freed by uslub_kfree. */
inline void *allocate_bytes(std::size_t bytes, std::size_t align)
{
    const bool as_it_is = align <= 8 || (align <= 16 && bytes > 8);
    return checked(as_it_is ? uslub_kmalloc(bytes, USLUB_GFP_KERNEL)
                            : uslub_kmalloc_aligned(bytes, align, USLUB_GFP_KERNEL));
}

/** What uslub said of arguments that it refused. */
[[noreturn]] inline void refuse(const char *what, const char *name)
{
    if (errno == EINVAL)
        raise(std::invalid_argument(std::string("uslub: ") + what + " '" + (name ? name : "") +
                                    "' cannot be made like that"));
    raise(std::bad_alloc());
}

#if defined(__cpp_lib_memory_resource)
/** Memory for std::pmr containers: of kmalloc, or of a named set of size classes of its own. */
class memory_resource final : public std::pmr::memory_resource {
public:
    /** Of kmalloc. All such resources are equal. */
    memory_resource() noexcept = default;

    /** Of a set of its own, whose caches are named `prefix-size`; a prefix has 1 to 26 bytes. */
    explicit memory_resource(const char *prefix) : buckets_(uslub_buckets_create(prefix))
    {
        if (buckets_ == nullptr)
            refuse("a memory resource", prefix);
    }

    memory_resource(const memory_resource &) = delete;
    memory_resource &operator=(const memory_resource &) = delete;

    /** Destroys the set; what is still in use is reported on standard error, and stays. */
    ~memory_resource() override { uslub_buckets_destroy(buckets_); }

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override
    {
        if (buckets_ == nullptr)
            return allocate_bytes(bytes, align);
        return checked(uslub_buckets_alloc_aligned(buckets_, bytes, align, USLUB_GFP_KERNEL));
    }

    void do_deallocate(void *memory, std::size_t, std::size_t) override { uslub_kfree(memory); }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
#if defined(__cpp_rtti) || defined(__GXX_RTTI)
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same != nullptr && same->buckets_ == buckets_;
#else
        // What the other one is cannot be asked.
        return this == &other;
#endif
    }

    uslub_buckets *buckets_ = nullptr;
};
#endif

/**
 * An allocator for containers; all of one type are equal.
 *
 * With a `Tag`, which has a member `name` of 1 to 26 bytes, single objects (the nodes of lists, maps and sets) come
 * from a cache of that name, and arrays from a set of size classes of that name. They are made at the first use, and
 * stay until the process ends.
 */
template <class T, class Tag = void> class allocator {
public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    template <class U> struct rebind {
        using other = allocator<U, Tag>;
    };

    allocator() noexcept = default;
    template <class U> allocator(const allocator<U, Tag> &) noexcept {}

    [[nodiscard]] T *allocate(std::size_t n)
    {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            raise(std::bad_array_new_length());
        if constexpr (std::is_void_v<Tag>)
            return static_cast<T *>(allocate_bytes(n * sizeof(T), alignof(T)));
        else if (n == 1 && fits())
            return static_cast<T *>(checked(uslub_cache_alloc(objects(), USLUB_GFP_KERNEL)));
        else
            return static_cast<T *>(
                checked(uslub_buckets_alloc_aligned(arrays(), n * sizeof(T), alignof(T), USLUB_GFP_KERNEL)));
    }

    void deallocate(T *memory, std::size_t n) noexcept
    {
        if constexpr (!std::is_void_v<Tag>) {
            if (n == 1 && fits()) {
                uslub_cache_free(objects(), memory);
                return;
            }
        }
        (void)n;
        uslub_kfree(memory);
    }

private:
    /** Whether a cache may have such objects. */
    static constexpr bool fits() { return sizeof(T) <= 65536 && alignof(T) <= 4096; }

    /** The cache of the single objects of this type. */
    static uslub_cache *objects()
    {
        static uslub_cache *const made = [] {
            uslub_cache_args args = {};
            args.size = sizeof(T);
            args.align = alignof(T);
            uslub_cache *cache = uslub_cache_create(Tag::name, &args);
            if (cache == nullptr)
                refuse("a cache", Tag::name);
            return cache;
        }();
        return made;
    }

    /** The size classes of the arrays of all types with this tag. */
    static uslub_buckets *arrays() { return allocator<char, Tag>::shared(); }

    static uslub_buckets *shared()
    {
        static uslub_buckets *const made = [] {
            uslub_buckets *set = uslub_buckets_create(Tag::name);
            if (set == nullptr)
                refuse("a set of size classes", Tag::name);
            return set;
        }();
        return made;
    }

    template <class, class> friend class allocator;
};

template <class T, class U, class Tag>
bool operator==(const allocator<T, Tag> &, const allocator<U, Tag> &) noexcept
{
    return true;
}

template <class T, class U, class Tag>
bool operator!=(const allocator<T, Tag> &, const allocator<U, Tag> &) noexcept
{
    return false;
}

/** A cache of objects of one type, which are constructed when they are made. */
template <class T> class cache {
public:
    /** Ends an object and frees it to its cache. */
    struct deleter {
        uslub_cache *of = nullptr;

        void operator()(T *object) const noexcept
        {
            object->~T();
            uslub_cache_free(of, object);
        }
    };

    /** An object of the cache, which outlives it. */
    using pointer = std::unique_ptr<T, deleter>;

    /** A cache of 1 to 31 bytes of name. Of the arguments, `size` is the type's, `align` at least the type's, and
     *  there is no `ctor`. */
    explicit cache(const char *name, uslub_cache_args args = {})
    {
        args.size = sizeof(T);
        if (args.align < alignof(T))
            args.align = alignof(T);
        if (args.ctor != nullptr || args.ctor_with != nullptr)
            raise(std::invalid_argument("uslub::cache: objects are constructed when they are made"));
        cache_ = uslub_cache_create(name, &args);
        if (cache_ == nullptr)
            refuse("a cache", name);
    }

    cache(cache &&other) noexcept : cache_(std::exchange(other.cache_, nullptr)) {}

    cache &operator=(cache &&other) noexcept
    {
        std::swap(cache_, other.cache_);
        return *this;
    }

    /** Destroys the cache; objects that are still in use are reported on standard error, and stay. */
    ~cache() { uslub_cache_destroy(cache_); }

    /** The cache for the functions of <uslub.h>. */
    [[nodiscard]] uslub_cache *get() const noexcept { return cache_; }

    /** Makes an object; throws std::bad_alloc, and what its constructor throws. */
    template <class... Args> [[nodiscard]] pointer make(Args &&...args)
    {
        return construct(checked(uslub_cache_alloc(cache_, USLUB_GFP_KERNEL)), std::forward<Args>(args)...);
    }

    /** Makes an object in a context (USLUB_GFP_NOWAIT and the like); null where there is no memory. */
    template <class... Args> [[nodiscard]] pointer try_make(uslub_gfp_t flags, Args &&...args)
    {
        void *memory = uslub_cache_alloc(cache_, flags & ~static_cast<uslub_gfp_t>(USLUB_GFP_ZERO));
        if (memory == nullptr)
            return pointer(nullptr, deleter{cache_});
        return construct(memory, std::forward<Args>(args)...);
    }

    /** Makes `n` objects of the same arguments, with one call for the memory of all. */
    template <class... Args> [[nodiscard]] std::vector<pointer> make_many(std::size_t n, const Args &...args)
    {
        std::vector<void *> memory(n);
        std::vector<pointer> objects;
        objects.reserve(n);
        if (n != 0 && uslub_cache_alloc_bulk(cache_, USLUB_GFP_KERNEL, n, memory.data()) != n)
            raise(std::bad_alloc());
        USLUB_TRY_
        {
            for (void *place : memory)
                objects.emplace_back(::new (static_cast<void *>(place)) T(args...), deleter{cache_});
        }
        USLUB_CATCH_ALL_
        {
            const std::size_t made = objects.size();
            uslub_cache_free_bulk(cache_, n - made, memory.data() + made);
            USLUB_RETHROW_;
        }
        return objects;
    }

    /** Frees many objects with one call. */
    void free_many(std::vector<pointer> objects) noexcept
    {
        static_assert(sizeof(T *) == sizeof(void *), "");
        void *batch[64];
        std::size_t filled = 0;
        for (pointer &object : objects) {
            if (T *of = object.release()) {
                of->~T();
                batch[filled++] = of;
            }
            if (filled == 64) {
                uslub_cache_free_bulk(cache_, filled, batch);
                filled = 0;
            }
        }
        uslub_cache_free_bulk(cache_, filled, batch);
    }

    /** Memory for objects that is set aside, so that making them cannot fail; what is left goes back at the end. */
    class prefilled {
    public:
        /** At least `n` objects (at least 1) of a cache; throws std::bad_alloc. */
        prefilled(cache &of, std::size_t n)
            : cache_(of.cache_), sheaf_(uslub_cache_prefill(cache_, USLUB_GFP_KERNEL, n))
        {
            if (sheaf_ == nullptr)
                refuse("a prefilled sheaf of", uslub_cache_name(cache_));
        }

        prefilled(const prefilled &) = delete;
        prefilled &operator=(const prefilled &) = delete;

        ~prefilled() { uslub_cache_return(cache_, USLUB_GFP_KERNEL, sheaf_); }

        /** Objects that are left. */
        [[nodiscard]] std::size_t size() const noexcept { return uslub_sheaf_size(sheaf_); }

        /** Fills up to at least `n` objects; throws std::bad_alloc, and then there are no fewer than before. */
        void refill(std::size_t n)
        {
            if (uslub_cache_refill(cache_, USLUB_GFP_KERNEL, &sheaf_, n) != 0)
                raise(std::bad_alloc());
        }

        /** Makes an object of what is set aside; throws std::bad_alloc when nothing is left, and what its
         *  constructor throws. */
        template <class... Args> [[nodiscard]] pointer make(Args &&...args)
        {
            void *memory = checked(uslub_cache_alloc_from(cache_, USLUB_GFP_NOWAIT, sheaf_));
            return construct_in(cache_, memory, std::forward<Args>(args)...);
        }

    private:
        uslub_cache *cache_;
        uslub_sheaf *sheaf_;
    };

    /** Sets at least `n` objects aside. */
    [[nodiscard]] prefilled prefill(std::size_t n) { return prefilled(*this, n); }

    /** Gives empty slabs back; whether slabs remain. */
    bool shrink() noexcept { return uslub_cache_shrink(cache_) != 0; }

    /** Figures of the cache. */
    [[nodiscard]] uslub_cache_stats stats() const noexcept
    {
        uslub_cache_stats figures{};
        uslub_cache_get_stats(cache_, &figures);
        return figures;
    }

private:
    template <class... Args> static pointer construct_in(uslub_cache *of, void *memory, Args &&...args)
    {
        USLUB_TRY_
        {
            return pointer(::new (static_cast<void *>(memory)) T(std::forward<Args>(args)...), deleter{of});
        }
        USLUB_CATCH_ALL_
        {
            uslub_cache_free(of, memory);
            USLUB_RETHROW_;
        }
    }

    template <class... Args> pointer construct(void *memory, Args &&...args)
    {
        return construct_in(cache_, memory, std::forward<Args>(args)...);
    }

    uslub_cache *cache_ = nullptr;
};

} // namespace uslub

#undef USLUB_TRY_
#undef USLUB_CATCH_ALL_
#undef USLUB_RETHROW_

#endif
