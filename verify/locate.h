#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/json.h"
#include "runtime/executor.h"
#include "verify/logits.h"

namespace assay {

/// The first op of a forward pass whose result differs between two models.
struct OpDifference {
  std::string op;        // "layers.3.self_attn.q_proj"
  int layer = -1;        // −1: outside the layers
  std::string module;    // of a linear: "model.layers.3.self_attn.q_proj"; else empty
  std::string kind;      // "linear", "rms_norm", …
  std::string value;     // name of the register that it wrote
  int64_t position = 0;  // token position of the first differing row
  int64_t index = 0;     // column in that row
  float a = 0.0f, b = 0.0f;
  uint64_t n_different = 0;  // values of this op in this call
  int64_t matrix_row = -1;   // of a linear: the weight row that made the value, else −1
  std::string weight;        // first differing weight of that row, or that all are equal

  /// Two or three lines for people.
  std::vector<std::string> describe() const;
  Json to_json() const;
};

/// What came out of a search.
struct Location {
  std::optional<OpDifference> difference;  // empty: no op differed
  std::string reason;                      // why there is none: "the programs differ: …"
};

/// Runs `token_ids` through both executors and compares every value of every op, in the order of
/// execution. Two passes a side: the first keeps one 64-bit hash per op, the second the values of
/// the first op whose hashes differ, so that memory stays that of one op. The checkpoints, where
/// given, tell which weight a differing linear read.
Location locate_first_difference(Executor& a, Executor& b, std::span<const int32_t> token_ids,
                                 const Checkpoint* checkpoint_a = nullptr,
                                 const Checkpoint* checkpoint_b = nullptr);

}  // namespace assay
