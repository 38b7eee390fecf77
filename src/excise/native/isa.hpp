// The inner loops that exist once per instruction set, behind one table of function pointers.
#pragma once
#include <cstdint>

namespace excise {

constexpr uint16_t kNoPair = 65535;
constexpr int kMostRetrieved = 32;
constexpr int kSumGroups = 16;      // logits are summed within so many runs of codebooks first, then over the runs
constexpr int kStatesTogether = 8;  // of a walk: their sums of exponentials go side by side

static inline int group_start(int group, int groups, int c) { return static_cast<int>(static_cast<int64_t>(group) * c / groups); }
static constexpr int64_t walk_scratch(int64_t c, int64_t k, int64_t ld) {
    return (c * k + c + 2 * kSumGroups + 2 * kStatesTogether) * ld;
}

// Coefficients that bring a row, last moved at some step, to the present in one evaluation.
constexpr int kSeries = 8;
struct CatchUp {
    float reference;        // h of the first missed step
    float series[kSeries];  // sums of weights times powers of (1 - h/reference)
    bool exact;             // false while the series would not reach float32 accuracy: walk the steps instead
};

// Everything that the moves of one step share.
struct AdamStep {
    float size, root;            // learning_rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
    float one_minus_beta1, beta2, one_minus_beta2, epsilon;
    const CatchUp* catch_up;     // by the step at which a row last moved
    const float* beta1_power;    // by the number of missed steps
    const float* beta2_power;
    const float* beta2_half_power;
    const float* sizes;          // by step
    const float* roots;
    int longest;                 // missed steps after which the moments no longer move anything
};

// The retrievals of one batch in one codebook: its distinct rows, and for each the entries (example * k + slot).
struct Hits {
    int32_t distinct;
    const uint16_t* row;
    const int32_t* first;
    const int32_t* next;  // -1 ends a chain
};

// The keys of one codebook as a search reads them; masked pairs are left out.
struct Packed {
    const float* keys;            // [block][d][block size]
    const float* half;            // half the squared length of each, infinite for the padding
    int count, blocks;
    const int32_t* rounded;       // [block][two dimensions][block size]: the keys in whole steps, two to a number
    const int32_t* rounded_half;  // half the squared length of each in whole steps
    float step;                   // 0: search in floats
    float reach;                  // queries longer than this do, because long keys were left out of the rounded ones
};

// A pair that is among the k nearest as soon as it is not masked.
struct Entered {
    int32_t size;  // the largest at which it is not
    uint16_t pair;
    uint8_t place;
};

// Steps of one query, one after another.
struct Course {
    const int32_t *sizes, *books;
    const uint16_t* pairs;
    const uint8_t* places;
};

// Values (c, m, v) and how they are looked up.
struct Lookup {
    const float* values;
    int c, k, m, v;
    bool mean;
};

struct Isa {
    const char* name;
    int width;   // floats of a vector
    int block;   // keys of a packed block
    int panel;   // columns of a packed projection panel
    int tile;    // examples that the projection takes at a time

    // out[r][col] = sum over f, in order, of x[r * ldx + f * next] * panel[f * stride + col].
    void (*project)(const float* x, int64_t ldx, int64_t next, int rows, int f, const float* panel, int64_t stride,
                    int cols, float* out, int64_t ldo);
    // Index of the nearest packed key of each query z[q][d], -1 if none; scratch holds `search_scratch` floats.
    void (*nearest)(const float* z, int queries, int d, const Packed& keys, float* scratch, int32_t* out);
    // The k nearest, in order, and their scores.
    void (*nearest_k)(const float* z, int queries, int d, int k, const Packed& keys, float* scratch, int32_t* out,
                      float* out_scores);
    // The score of the key which[q] for each query z[q][d]; infinite where it is -1.
    void (*scores)(const float* z, int queries, int d, const Packed& keys, const int32_t* which, float* out);
    // Goes through the packed keys, whose pairs and ranks are given, in order, for each query z[q][d]. Lists the keys that
    // are nearer than the last of codes[q] (k) when their turn comes, which take their place there; `counts` says how many
    // there are of each query. Scores are those of the codes; scratch holds `climb_scratch` floats.
    void (*climb)(const float* z, int queries, int d, int k, const Packed& keys, float* scratch, const uint16_t* pairs,
                  const int32_t* ranks, uint16_t* codes, float* scores, Entered* out, int32_t* counts);
    // One query from its first codes (c, k) through some steps. Scratch holds `walk_scratch` floats.
    void (*walk)(const Lookup& lookup, uint16_t* codes, const Course& course, int64_t count, int64_t label, float* scratch,
                 int32_t* first_best, double* first_loss, int32_t* best, double* loss);
    // Fills `rounded` and `rounded_half` and returns the step; keys whose half squared length is beyond `far` get a score
    // that never wins. Null where whole numbers would not be faster.
    float (*round_keys)(const float* keys, const float* half, float far, int d, int blocks, int32_t* rounded,
                        int32_t* rounded_half);
    void (*half_norms)(const float* keys, int d, int blocks, float* half);
    // Packs anew the keys whose half squared length is at most `end`, zeros behind them, lists them, and returns how many.
    // Scratch holds d * (block + width) floats, and `which` room for one vector more than there are keys.
    int (*pack_shorter)(const float* keys, const float* half, float end, int d, int blocks, float* scratch, float* to,
                        int32_t* which);
    // One step of the moving averages of one codebook, all in packed layout.
    void (*average)(float* keys, float* sums, float* counts, const float* added, const float* hits, int d, int blocks,
                    int pairs);
    // acc[e] (n, ld) += the rows that codes[e] retrieves in some codebooks, one after another; and its transpose.
    void (*gather)(float* acc, int64_t ld, const uint16_t* codes, int64_t code_stride, int n, int codebooks, int k,
                   const float* values, int64_t codebook_stride, int64_t row_stride, int v, bool mean);
    void (*scatter)(float* table, int64_t codebook_stride, int64_t row_stride, const uint16_t* codes,
                    int64_t code_stride, int n, int codebooks, int k, const float* g, int64_t ld, int v, bool mean);
    // Training rows are [values | m | s], each padded to `size` floats (for SGD the values alone); `last` is the step at
    // which a row moved last. `g` (examples, size) are the residuals of the batch.
    void (*adam_catch_up)(float* rows, int32_t* last, int64_t size, const uint16_t* which, int count, int now,
                          const AdamStep& step);
    void (*adam_move)(float* rows, int32_t* last, int64_t size, const Hits& hits, const float* g, int k,
                      const float* weights, float scale, int now, const AdamStep& step);
    void (*adam_move_all)(float* rows, int64_t size, int pairs, const int32_t* slot, const float* sums, float l2,
                          float scale, const AdamStep& step);
    void (*sgd_move)(float* rows, int64_t size, const Hits& hits, const float* g, int k, const float* weights,
                     float scale, float rate);
    void (*sgd_move_all)(float* rows, int64_t size, int pairs, const int32_t* slot, const float* sums, float l2,
                         float scale, float rate);
    double (*multiply_adds)(int64_t repeats);  // 12 independent chains of vectors: how fast the machine can go at all
};

const Isa* avx512vnni();  // null where it was not built or the machine lacks it
const Isa* avx512();
const Isa* avx2();
const Isa* neon();
const Isa* plain();

}  // namespace excise
