// The table of one instruction set, filled from the templates that were just compiled for it.
#pragma once
#include "isa_search.hpp"
#include "isa_stairs.hpp"
#include "isa_values.hpp"
#if defined(EXCISE_VNNI)
#include "isa_integer.hpp"
#endif

namespace {

excise::Isa make_table(const char* name) {
    excise::Isa isa{};
    isa.name = name;
    isa.width = W;
    isa.block = BK;
    isa.panel = 2 * W;
    isa.tile = Vec::project_tile;
    isa.project = project;
#if defined(EXCISE_VNNI)
    isa.nearest = nearest_or_rounded;
    isa.nearest_k = nearest_k_or_rounded;
    isa.climb = climb_or_rounded;
    isa.round_keys = round_keys;
#else
    isa.nearest = nearest;
    isa.nearest_k = nearest_k;
    isa.climb = climb;
#endif
    isa.scores = scores;
    isa.walk = walk;
    isa.half_norms = half_norms;
    isa.pack_shorter = pack_shorter;
    isa.average = average;
    isa.gather = gather;
    isa.scatter = scatter;
    isa.adam_catch_up = adam_catch_up;
    isa.adam_move = adam_move;
    isa.adam_move_all = adam_move_all;
    isa.sgd_move = sgd_move;
    isa.sgd_move_all = sgd_move_all;
    isa.multiply_adds = multiply_adds;
    return isa;
}

}  // namespace
