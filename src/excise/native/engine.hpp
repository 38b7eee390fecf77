// The loops over codebooks, examples and threads; every sum has one order, whatever the number of threads.
//
// Axes: n examples, f feature, c codebooks, m pairs, d key, k retrieved, v classes.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "isa.hpp"

namespace excise {

const Isa& isa();                        // the one in use
bool use(const std::string& name);       // choose another that this machine has
std::vector<std::string> available();

void* allocate(size_t bytes);  // on pages as large as the system gives, not initialised; freed by std::free

template <class T>
class BufferOf {
   public:
    BufferOf() = default;
    explicit BufferOf(int64_t count) : data_(static_cast<T*>(allocate(sizeof(T) * static_cast<size_t>(count)))) {}
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T* release() { return data_.release(); }

   private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
};
using Buffer = BufferOf<float>;

void project(const float* x, int64_t n, int f, const float* projection, int64_t columns, float* z, int threads);

// What a search reads beside the keys of a codebook; filled again when those change.
class SearchTable {
   public:
    // For at most `size` keys, which is a whole number of blocks.
    SearchTable(const Isa& isa, int64_t size, int d);
    void fill(const float* packed_keys, int count);
    void leave_out_far_keys();
    Packed packed() const { return packed_; }

   private:
    void round(float far);
    const Isa& isa_;
    int d_;
    Packed packed_{};  // points into what follows, which a move leaves in place
    Buffer half_;
    BufferOf<int32_t> rounded_, rounded_half_;
};

class PreparedKeys {
   public:
    PreparedKeys(const PreparedKeys&) = delete;
    PreparedKeys(const float* keys, int c, int m, int d, const bool* live, int threads);
    void nearest(const float* z, int64_t n, int k, uint16_t* codes, int threads) const;
    int codebooks() const { return c_; }
    int key_dim() const { return d_; }

    struct Scratch {
        Buffer search;
        BufferOf<int32_t> found;
        Buffer scores;
    };
    Scratch scratch(int64_t queries, int k) const;
    int at_a_time(int k) const;  // queries that are best searched together
    // The k nearest pairs of each of some queries z (count, d) in one codebook, `stride` codes apart; and, where they are
    // asked for, their scores (count, k): infinite where there is no pair.
    void search(int codebook, const float* z, int count, int k, Scratch& scratch, uint16_t* codes, int64_t stride,
                float* code_scores) const;

   private:
    // Many pairs may have one key (dead keys took the same example): it is searched once, and stands for all of them.
    struct Codebook {
        Buffer keys;                  // [block][d][block size]: the distinct keys of the live pairs, by their first pair
        std::vector<uint16_t> pairs;  // those of the first key in order, those of the second, ...
        std::vector<int32_t> first;   // of each key among the pairs, and one more
        std::unique_ptr<SearchTable> table;
        Codebook() = default;
        Codebook(const Isa& isa, const float* keys, int m, int d, const bool* live);
        uint16_t first_pair(int32_t key) const {
            return key < 0 ? kNoPair : pairs[static_cast<size_t>(first[static_cast<size_t>(key)])];
        }
        void spread(const int32_t* found, const float* scores, int k, uint16_t* codes, float* code_scores) const;
    };
    const Isa& isa_;
    int c_, m_, d_, most_blocks_ = 0;
    std::vector<Codebook> codebooks_;
};

// Keys ready to be searched under every mask of a nested row of them at once: a pair is masked at the sizes above its rank.
class PreparedStairs {
   public:
    PreparedStairs(const PreparedStairs&) = delete;
    PreparedStairs(const float* keys, int c, int m, int d, const int32_t* ranks, int threads);
    struct Steps {
        int64_t count;
        BufferOf<int32_t> sizes, books;
        BufferOf<uint16_t> pairs;
        BufferOf<uint8_t> places;
        explicit Steps(int64_t n) : count(n), sizes(n), books(n), pairs(n), places(n) {}
    };
    // Fills codes (n, c, k), the choice among the pairs that are never masked, and offsets (n + 1).
    Steps steps(const float* z, int64_t n, int k, uint16_t* codes, int64_t* offsets, int threads) const;
    int codebooks() const { return c_; }
    int key_dim() const { return d_; }

   private:
    // The pairs of a codebook that some masks hold and some do not: the higher the rank, the sooner they come alive.
    struct Flight {
        Buffer keys;
        std::vector<uint16_t> pairs;
        std::vector<int32_t> ranks;
        std::unique_ptr<SearchTable> table;
        Flight() = default;
        Flight(const Isa& isa, const float* keys, int m, int d, const int32_t* ranks);
    };
    struct Worker;
    const Isa& isa_;
    int c_, m_, d_;
    std::unique_ptr<PreparedKeys> never_;
    std::vector<Flight> flights_;
};

class KeyInitializer {
   public:
    KeyInitializer(const KeyInitializer&) = delete;
    KeyInitializer(const float* keys, int c, int m, int d, uint64_t seed, int batch_size);
    void update(const float* z, int64_t n, int threads);
    void keys(float* out) const;
    int codebooks() const { return c_; }
    int pairs() const { return m_; }
    int key_dim() const { return d_; }

   private:
    struct Scratch;
    void update_codebook(int i, const float* z, int n, uint64_t step, Scratch& scratch);
    void find(int i, const float* z, int n, Scratch& scratch) const;
    const Isa& isa_;
    int c_, m_, d_, blocks_, batch_size_;
    uint64_t seed_, step_ = 0;
    std::vector<Buffer> keys_, sums_, counts_;
    std::vector<std::vector<uint16_t>> copied_;  // lower pair that holds a pair's key; kNoPair where it is its own
};

bool codes_within(const uint16_t* codes, int64_t count, int m, int threads);

void logits(const uint16_t* codes, int64_t n, int c, int k, const float* values, int m, int v, bool mean, float* out,
            int threads);
void gradient(const uint16_t* codes, int64_t n, int c, int k, const float* residuals, int m, int v, bool mean,
              float* table, int threads);

// The prediction and the loss of each of n queries with the codes (n, c, k), and again after each of its steps; offsets
// (n + 1). Where the next step has the same size, what was so before is repeated.
void walk(const uint16_t* codes, int64_t n, int c, int k, const int64_t* offsets, const Course& course, const float* values,
          int m, int v, bool mean, const int64_t* labels, int32_t* first_best, double* first_loss, int32_t* best,
          double* loss, int threads);

// Residuals softmax - target, in place of the logits of n examples `ld` apart; returns losses.
void cross_entropy(float* logits, int64_t ld, int64_t n, int v, const int64_t* labels, double smoothing,
                   double* losses);

struct Options {
    bool adam = true, mean = true;
    double learning_rate = 0.3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, label_smoothing = 0, l2 = 0;
    double gradient_clip = 0;  // 0 is none
};

class ValueTrainer {
   public:
    ValueTrainer(const ValueTrainer&) = delete;
    ValueTrainer(const float* values, int c, int m, int v, const Options& options, int threads);
    double train(const uint16_t* codes, int64_t n, int k, const int64_t* labels, const int64_t* order, int64_t count,
                 int batch_size, int threads);
    void values(float* out, int threads);
    int codebooks() const { return c_; }
    int pairs() const { return m_; }
    int classes() const { return v_; }

   private:
    struct Batch;   // what one codebook retrieves in one batch
    struct Worker;  // one thread's scratch
    void advance();
    AdamStep adam_step() const;
    void collect(Batch& batch, Worker& worker, const uint16_t* codes, const int64_t* order, int examples, int codebook,
                 int k);
    void gather(const Batch& batch, int codebook, int k, int examples, float* part, const AdamStep& step);
    void move(const Batch& batch, int codebook, int k, Worker& worker, float scale, const AdamStep& step);
    double squared_norm(const Batch& batch, int codebook, int k, Worker& worker);
    void sum_rows(const Batch& batch, int k, Worker& worker);

    const Isa& isa_;
    int c_, m_, v_;
    int64_t size_, stride_;  // floats of a row of logits, of a training row
    Options options_;
    int32_t now_ = 0;  // steps taken
    int longest_;      // steps after which a resting row stands still
    Buffer rows_;
    std::vector<int32_t> last_;  // step at which a row moved last; 0 is never
    std::vector<CatchUp> catch_up_;
    std::vector<double> series_;  // kSeries + 1 sums in double behind each CatchUp
    std::vector<float> sizes_, roots_, beta1_power_, beta2_power_, beta2_half_power_;
    std::vector<float> g_;  // residuals of the batch, scaled
};

double multiply_add_peak(int threads);  // floating-point operations per second

}  // namespace excise
