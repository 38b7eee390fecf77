// Every mask size at once: which pairs enter the k nearest as they come alive, and what that does to the logits.
#pragma once
#include <algorithm>

#include "exponential.hpp"
#include "isa_search.hpp"
#include "isa_values.hpp"

namespace {

// ---- the pairs that enter -------------------------------------------------------------------------------------------

void scores(const float* z, int queries, int d, const excise::Packed& packed, const int32_t* which, float* out) {
    for (int q = 0; q < queries; ++q) {
        if (which[q] < 0) {
            out[q] = HUGE_VALF;
            continue;
        }
        const float* key = packed.keys + static_cast<int64_t>(which[q] / BK) * d * BK + which[q] % BK;
        Vec x = Vec::all(packed.half[which[q]]);  // the chain of `score_block`, alike in every lane
        for (int j = 0; j < d; ++j) x = Vec::fused_negative(Vec::all(z[q * d + j]), Vec::all(key[j * BK]), x);
        x.store(out + q, 1);
    }
}

// Blocks that can hold a key nearer than a limit, by the least scores of their lanes.
struct LeastScores {
    const float* least;
    Vec most{};
    void set_limit(float limit) { most = Vec::all(limit); }
    bool holds(int b) const { return Vec::bits(Vec::load(least + static_cast<int64_t>(b) * W) <= most) != 0; }
};

// Few pairs enter, so the least scores are compared with the last of the k nearest, 64 blocks before the first branch; only
// a block that can hold a nearer key is computed again, and its keys taken one by one.
template <int D, class Least>
int climb_one(const float* z, int d, int k, const excise::Packed& packed, Least least, const uint16_t* pairs,
              const int32_t* ranks, uint16_t* codes, float* best, excise::Entered* out) {
    static_assert(BK <= 64, "a bit for each key of a block");
    const int n = D ? D : d;
    const auto limit = [&] { return best[k - 1] < FLT_MAX ? best[k - 1] : FLT_MAX; };  // nothing infinite enters
    least.set_limit(limit());
    int count = 0;
    for (int from = 0; from < packed.blocks; from += 64) {
        const int blocks = packed.blocks - from < 64 ? packed.blocks - from : 64;
        uint64_t hits = 0;
        for (int b = 0; b < blocks; ++b) hits |= static_cast<uint64_t>(least.holds(from + b)) << b;
        for (; hits; hits &= hits - 1) {
            const int b = from + __builtin_ctzll(hits), before = count;
            if (!least.holds(b)) continue;
            const Vec now = Vec::all(limit());
            Vec acc[1][KT];
            score_block<1, D>(z, d, packed.keys + static_cast<int64_t>(b) * n * BK, packed.half + b * BK, acc);
            float lane[BK];
            uint64_t keys = 0;
            EXCISE_UNROLL
            for (int t = 0; t < KT; ++t) {
                acc[0][t].store(lane + t * W);
                keys |= static_cast<uint64_t>(Vec::bits(acc[0][t] <= now)) << (t * W);
            }
            for (; keys; keys &= keys - 1) {
                const int i = __builtin_ctzll(keys);
                const float x = lane[i];
                const uint16_t pair = pairs[b * BK + i];
                int place = k;
                while (place > 0 && (x < best[place - 1] || (x == best[place - 1] && pair < codes[place - 1]))) --place;
                if (place == k) continue;
                for (int s = k - 1; s > place; --s) {
                    best[s] = best[s - 1];
                    codes[s] = codes[s - 1];
                }
                best[place] = x;
                codes[place] = pair;
                out[count++] = {ranks[b * BK + i], pair, static_cast<uint8_t>(place)};
            }
            if (count > before) least.set_limit(limit());
        }
    }
    return count;
}

template <int D>
void climb_all(const float* z, int queries, int d, int k, const excise::Packed& keys, float* scratch,
               const uint16_t* pairs, const int32_t* ranks, uint16_t* codes, float* best, excise::Entered* out, int32_t* counts) {
    score_all<D, false>(z, queries, d, keys.keys, keys.half, keys.blocks, nullptr, scratch);
    for (int q = 0; q < queries; ++q) {
        const LeastScores least{scratch + static_cast<int64_t>(q) * keys.blocks * W};
        counts[q] = climb_one<D>(z + q * d, d, k, keys, least, pairs, ranks, codes + q * k, best + q * k, out);
        out += counts[q];
    }
}

void climb(const float* z, int queries, int d, int k, const excise::Packed& keys, float* scratch, const uint16_t* pairs,
           const int32_t* ranks, uint16_t* codes, float* best, excise::Entered* out, int32_t* counts) {
    with_key_size(d, [&](auto size) {
        climb_all<decltype(size)::value>(z, queries, d, k, keys, scratch, pairs, ranks, codes, best, out, counts);
    });
}

// ---- the logits on the way ------------------------------------------------------------------------------------------

// The rows of a query lie side by side, weighted, zeros where there is none; sums are kept at every codebook and at every
// group of them. So a change costs what comes behind it in its group, and the groups behind that: the same additions in the
// same order as from the start, but for zeros.
class Walker {
   public:
    Walker(const excise::Lookup& lookup, uint16_t* codes, int64_t label, float* scratch)
        : lookup_(lookup), codes_(codes), label_(label), ld_((lookup.v + W - 1) / W * W),
          groups_(lookup.c < excise::kSumGroups ? lookup.c : excise::kSumGroups),
          share_(1.0f / static_cast<float>(lookup.c)),
          last_whole_(lookup.values + static_cast<int64_t>(lookup.c) * lookup.m * lookup.v - ld_), rows_(scratch), before_(rows_ + int64_t{1} * lookup.c * lookup.k * ld_),
          part_(before_ + lookup.c * ld_), sum_(part_ + excise::kSumGroups * ld_), states_(sum_ + excise::kSumGroups * ld_),
          powers_(states_ + excise::kStatesTogether * ld_) {
        const int slots = lookup.c * lookup.k;
        for (int i = 0; i < slots && i < kAheadOfSteps; ++i) fetch(i / lookup.k, codes[i]);
        for (int i = 0, ahead = kAheadOfSteps; i < lookup.c; ++i) {
            for (; ahead < slots && ahead < (i + 1) * lookup.k + kAheadOfSteps; ++ahead) fetch(ahead / lookup.k, codes[ahead]);
            fill_rows(i);
        }
        for (int g = 0; g < groups_; ++g) {
            start_[g] = excise::group_start(g, groups_, lookup.c);
            changed_[g] = start_[g];
            for (int64_t i = 0; i < ld_; i += W) Vec::all(0.0f).store(before_ + start_[g] * ld_ + i);
        }
        start_[groups_] = lookup.c;
        dirty_ = (1u << groups_) - 1;
        for (int64_t i = 0; i < ld_; i += W) Vec::all(0.0f).store(sum_ + i);
        for (int64_t i = 0; i < excise::kStatesTogether * ld_; i += W) {
            Vec::all(-FLT_MAX).store(states_ + i);  // the padding is never larger than a logit
            Vec::all(0.0f).store(powers_ + i);
        }
    }

    // Inlined by force: GCC takes a function that only fetches for one without effect, and drops its calls.
    __attribute__((always_inline)) void fetch(int book, uint16_t pair) const {
        if (pair == excise::kNoPair) return;
        const float* row = row_of(book, pair);
        for (int64_t j = 0; j < ld_; j += 16) __builtin_prefetch(row + j);
        __builtin_prefetch(row + ld_ - 1);  // whole vectors are read
    }

    void change(int book, uint16_t pair, int place) {
        const int k = lookup_.k;
        uint16_t* slots = codes_ + static_cast<int64_t>(book) * k;
        const bool one_more = slots[k - 1] == excise::kNoPair;
        for (int s = k - 1; s > place; --s) slots[s] = slots[s - 1];
        slots[place] = pair;
        if (one_more && k > 1 && lookup_.mean) {
            fill_rows(book);
        } else {
            float* rows = rows_ + static_cast<int64_t>(book) * k * ld_;
            for (int64_t i = (k - 1) * ld_ - W; i >= place * ld_; i -= W) Vec::load(rows + i).store(rows + i + ld_);
            fill_row(book, place, Vec::all(slot_weight(slots, k, lookup_.mean)));
        }
        int g = static_cast<int>(static_cast<int64_t>(book) * groups_ / lookup_.c);
        while (start_[g] > book) --g;
        while (start_[g + 1] <= book) ++g;
        if (!(dirty_ >> g & 1) || book < changed_[g]) changed_[g] = book;
        dirty_ |= 1u << g;
    }

    // The logits of the codes as they are now; what they give is written later.
    void look(int32_t* best, double* loss) {
        const int first = __builtin_ctz(dirty_);
        for (; dirty_; dirty_ &= dirty_ - 1) {
            const int g = __builtin_ctz(dirty_);
            int64_t i = 0;
            for (; i + 4 * W <= ld_; i += 4 * W) add_books<4>(changed_[g], start_[g + 1], part_ + g * ld_, i);
            for (; i < ld_; i += W) add_books<1>(changed_[g], start_[g + 1], part_ + g * ld_, i);
        }
        float* state = states_ + waiting_ * ld_;
        for_row(lookup_.v, [&](int i, int lanes) {
            Vec total = Vec::load(sum_ + first * ld_ + i);
            for (int g = first; g < groups_; ++g) {
                total.store(sum_ + g * ld_ + i);
                total = total + Vec::load(part_ + g * ld_ + i);
            }
            store_some(state + i, lanes, total * Vec::all(share_));
        });
        best_[waiting_] = best;
        loss_[waiting_] = loss;
        if (++waiting_ == excise::kStatesTogether) settle();
    }

    void settle() {
        double expected[excise::kStatesTogether];
        for (int s = 0; s < waiting_; ++s) expected[s] = exponentials(states_ + s * ld_, powers_ + s * ld_, best_[s]);
        float total[excise::kStatesTogether] = {};  // each sum in order, but side by side, or each addition would wait
        for (int j = 0; j < lookup_.v; ++j)
            for (int s = 0; s < excise::kStatesTogether; ++s) total[s] += powers_[s * ld_ + j];
        for (int s = 0; s < waiting_; ++s) *loss_[s] = std::log(static_cast<double>(total[s])) - expected[s];
        waiting_ = 0;
    }

    static constexpr int kAheadOfSteps = 16;

   private:
    const float* row_of(int book, uint16_t pair) const {
        return lookup_.values + (static_cast<int64_t>(book) * lookup_.m + pair) * lookup_.v;
    }

    void fill_row(int book, int slot, Vec weight) {
        const uint16_t pair = codes_[static_cast<int64_t>(book) * lookup_.k + slot];
        float* to = rows_ + (static_cast<int64_t>(book) * lookup_.k + slot) * ld_;
        if (pair == excise::kNoPair) {
            for (int64_t i = 0; i < ld_; i += W) Vec::all(0.0f).store(to + i);
            return;
        }
        const float* from = row_of(book, pair);
        if (from <= last_whole_) {  // what the padding holds is never looked at, and whole vectors are faster
            for (int64_t i = 0; i < ld_; i += W) (Vec::load(from + i) * weight).store(to + i);
            return;
        }
        for_row(lookup_.v, [&](int i, int lanes) { (load_some(from + i, lanes) * weight).store(to + i); });
    }

    void fill_rows(int book) {
        const int k = lookup_.k;
        const Vec weight = Vec::all(slot_weight(codes_ + static_cast<int64_t>(book) * k, k, lookup_.mean));
        for (int s = 0; s < k; ++s) fill_row(book, s, weight);
    }

    template <int VT>
    void add_books(int from, int to, float* part, int64_t i) {
        const int k = lookup_.k;
        Vec a[VT];
        EXCISE_UNROLL
        for (int t = 0; t < VT; ++t) a[t] = Vec::load(before_ + from * ld_ + i + t * W);
        const float* row = rows_ + static_cast<int64_t>(from) * k * ld_ + i;
        for (int b = from; b < to; ++b) {
            EXCISE_UNROLL
            for (int t = 0; t < VT; ++t) a[t].store(before_ + b * ld_ + i + t * W);
            for (int s = 0; s < k; ++s, row += ld_) {
                EXCISE_UNROLL
                for (int t = 0; t < VT; ++t) a[t] = a[t] + Vec::load(row + t * W);
            }
        }
        EXCISE_UNROLL
        for (int t = 0; t < VT; ++t) a[t].store(part + i + t * W);
    }

    // The exponentials of logits, and the prediction; returns the logit of the label less the largest.
    double exponentials(const float* row, float* powers, int32_t* best) const {
        const Vec zero = Vec::all(0.0f);
        Vec least = zero - Vec::load(row);
        uint32_t finite = ~0u;
        for (int64_t i = 0; i < ld_; i += W) {
            const Vec x = Vec::load(row + i);
            finite &= Vec::bits(x - x == zero);
            least = Vec::min(zero - x, least);
        }
        if (finite != Vec::bits(zero == zero)) {
            *best = first_largest(row, lookup_.v);
            return exponentials_of_any(row, powers);
        }
        const float most = -least.least();
        int64_t first = 0;
        uint32_t same;
        while (!(same = Vec::bits(Vec::load(row + first) == Vec::all(most)))) first += W;
        *best = static_cast<int32_t>(first) + __builtin_ctz(same);
        for (int64_t j = 0; j < ld_; ++j) powers[j] = exponential(row[j] - most);
        const float expected = row[label_] - most;
        return static_cast<double>(expected);
    }

    // The same where some logits are infinite or no numbers: as `cross_entropy` computes it.
    double exponentials_of_any(const float* row, float* powers) const {
        const float most = *std::max_element(row, row + lookup_.v);
        double expected = 0;
        for (int j = 0; j < lookup_.v; ++j) {
            const float shifted = row[j] - most;
            expected += static_cast<double>(j == label_ ? 1.0f : 0.0f) * shifted;
            powers[j] = exponential(shifted);
        }
        return expected;
    }

    // As numpy has it: what is no number is larger than all.
    static int32_t first_largest(const float* row, int v) {
        int best = 0;
        for (int j = 0; j < v; ++j) {
            if (row[j] != row[j]) return j;
            if (row[j] > row[best]) best = j;
        }
        return best;
    }

    const excise::Lookup& lookup_;
    uint16_t* codes_;
    int64_t label_, ld_;
    int groups_, waiting_ = 0;
    float share_;
    const float* last_whole_;  // row that may be read in whole vectors
    float *rows_, *before_, *part_, *sum_;  // rows by slot; sums before a codebook, of a group, before a group
    float *states_, *powers_;               // logits that wait, their exponentials
    int start_[excise::kSumGroups + 1], changed_[excise::kSumGroups];
    uint32_t dirty_;
    int32_t* best_[excise::kStatesTogether];
    double* loss_[excise::kStatesTogether];
};

void walk(const excise::Lookup& lookup, uint16_t* codes, const excise::Course& course, int64_t count, int64_t label,
          float* scratch, int32_t* first_best, double* first_loss, int32_t* best, double* loss) {
    constexpr int ahead = Walker::kAheadOfSteps;
    Walker walker(lookup, codes, label, scratch);
    walker.look(first_best, first_loss);
    for (int64_t e = 0; e < count; ++e) {
        if (e + ahead < count) walker.fetch(course.books[e + ahead], course.pairs[e + ahead]);
        walker.change(course.books[e], course.pairs[e], course.places[e]);
        if (e + 1 == count || course.sizes[e + 1] != course.sizes[e]) walker.look(best + e, loss + e);
    }
    walker.settle();
    for (int64_t e = 0; e + 1 < count; ++e)
        if (course.sizes[e + 1] == course.sizes[e]) {
            best[e] = e ? best[e - 1] : *first_best;
            loss[e] = e ? loss[e - 1] : *first_loss;
        }
}

}  // namespace
