// What every loop over codebooks, examples and threads uses.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

inline size_t thread_number() {
#ifdef _OPENMP
    return static_cast<size_t>(omp_get_thread_num());
#else
    return 0;
#endif
}

// Threads worth waking for so many operations; a result never depends on their number.
inline int team(int threads, double operations) { return operations < 1e6 ? 1 : threads; }

inline int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Where a key begins in packed layout [block][d][block size]; its dimensions are a block apart.
class Place {
   public:
    Place(int block, int d) : shift_(__builtin_ctz(static_cast<unsigned>(block))), lane_(block - 1), size_(block * d) {}
    int64_t operator()(int key) const { return static_cast<int64_t>(key >> shift_) * size_ + (key & lane_); }

   private:
    int shift_, lane_, size_;  // blocks are powers of two
};

// A few floats; a call of memcpy would cost more than the copy.
inline void copy_row(float* to, const float* from, int d) {
    int j = 0;
    for (; j + 4 <= d; j += 4) std::memcpy(to + j, from + j, 16);
    if (j + 2 <= d) {
        std::memcpy(to + j, from + j, 8);
        j += 2;
    }
    if (j < d) to[j] = from[j];
}

constexpr int kAhead = 16;  // rows far apart in memory are asked for so many turns before they are used

template <int kForWriting, class T>
inline void fetch(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + i, kForWriting, 2);
}

// What each thread works in, made before they start: no exception may leave a thread.
template <class F>
auto of_each(int threads, F make) {
    std::vector<decltype(make())> all;
    for (int i = 0; i < threads; ++i) all.push_back(make());
    return all;
}

// Where threads must allocate all the same: keeps the first exception for the one that started them.
class FirstError {
   public:
    template <class F>
    void keep(F f) noexcept {
        try {
            f();
        } catch (...) {
            if (!taken_.test_and_set()) error_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

   private:
    std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
    std::exception_ptr error_;
};

constexpr int kQueries = 64;  // searched at a time, so that their running minima stay in the first cache

// A task of a search: some codebooks, all of whose keys are close at hand, and as many queries as a tile of z has room for.
struct Tasks {
    int books;
    int64_t queries, rows, columns;
    Tasks(int64_t n, int c, int m, int d)
        : books(n < kQueries ? std::min(4, c) : std::min(c, std::clamp(65536 / (m * d), 8, 64))) {
        queries = std::min<int64_t>(n, std::max(1, 65536 / (books * d * kQueries)) * kQueries);
        rows = (n + queries - 1) / queries;
        columns = (c + books - 1) / books;
    }
    int64_t count() const { return rows * columns; }
};

// Queries z (n, c, d) of a task, side by side for each of its codebooks: [codebook][query][d], `ld` queries apart.
inline void copy_tile(const float* z, int c, int d, int64_t count, int width, int64_t ld, float* tile) {
    for (int64_t q = 0; q < count; ++q) {
        fetch<0>(z + std::min(q + kAhead, count - 1) * c * d, width * d);
        for (int i = 0; i < width; ++i) copy_row(tile + (i * ld + q) * d, z + (q * c + i) * d, d);
    }
}

}  // namespace
