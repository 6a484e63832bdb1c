#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/model_spec.h"

namespace assay {

/// cos and sin of every position and pair, fp32, made on the host (arithmetic.md §4).
struct RopeTable {
  int rotary_dims = 0;  // r
  int64_t n_positions = 0;
  std::vector<float> inv_freq;  // (r/2), after scaling
  std::vector<float> cos;       // (n_positions, r/2), times the attention factor
  std::vector<float> sin;       // (n_positions, r/2)
};

/// Runs on all threads; must not be called from within parallel_for.
RopeTable make_rope_table(const RopeSpec& spec, int64_t n_positions);
/// SHA-256 of inv_freq as little-endian fp32.
std::string rope_inv_freq_sha256(const RopeSpec& spec);
/// SHA-256 of the table of positions 0 … 4,095: per position cos, then sin.
std::string rope_table_sha256(const RopeSpec& spec);

/// In place, half-split: x1' = x1·c − x2·s, x2' = x2·c + x1·s, each product rounded, one
/// subtraction or addition, no fma. x (n_heads, head_dim); the pairs are (i, i + r/2).
void rope_apply(const RopeTable& table, int64_t position, float* x, int n_heads, int head_dim);

}  // namespace assay
