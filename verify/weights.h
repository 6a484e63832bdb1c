#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/json.h"
#include "verify/logits.h"

namespace assay {

/// One tensor of two checkpoints, compared by its dequantized values in Hugging Face order. Zeros
/// of either sign are the same weight.
struct TensorComparison {
  std::string name;  // Hugging Face name
  Role role = Role::kTokenEmbedding;
  int layer = -1;
  int expert = -1;
  Shape shape;
  std::string format_a, format_b;       // "BF16", "W4_ASYM g128"
  bool plain_a = true, plain_b = true;  // stored as numbers, not as codes and scales
  uint64_t n_different = 0;             // values
  int64_t n_rows_different = 0;
  std::optional<FloatDifference> first;  // 1-D tensors: row 0
  int64_t group_a = 0, group_b = 0;      // columns per scale; 0: none
  double max_abs_difference = 0.0;
  double relative_difference = 0.0;  // rms of the difference / rms of A
  std::string fault;                 // why it could not be compared; else empty

  bool equal() const { return n_different == 0 && fault.empty(); }
  /// Equal values give equal bits of every logit: the runtime reads all plain numbers alike, and
  /// sums codes of one format in one order.
  bool same_format() const { return (plain_a && plain_b) || format_a == format_b; }
  /// "model.layers.0…q_proj.weight: 1 of 65536 values differ, first at row 3, column 17 (group 0):
  /// 0.5 (0x3f000000) against 0.25 (0x3e800000)"
  std::string describe() const;
  Json to_json() const;
};

struct WeightsComparison {
  std::vector<TensorComparison> tensors;      // in the order of A's table
  std::vector<std::string> spec_differences;  // "layer 0: rope inverse frequencies differ at …"

  uint64_t n_different() const;  // tensors
  /// Every tensor has same_format().
  bool same_formats() const;
  /// Every matrix is stored as plain numbers on the given side.
  bool plain_a() const;
  bool plain_b() const;
  const TensorComparison* first_difference() const;
};

/// What differs between two specs as far as a forward pass can see (names of families, stop sets
/// and context lengths are not part of it).
std::vector<std::string> compare_specs(const ModelSpec& a, const ModelSpec& b);

/// Reads every tensor of both sides once, a few rows at a time. `progress` gets the tensor's number
/// and name before it is read; it may throw to stop.
WeightsComparison compare_weights(
    const Checkpoint& a, const Checkpoint& b,
    const std::function<void(size_t done, size_t total, const std::string& name)>& progress = {});

/// The first value of one matrix row that differs, as (row, column); empty if the rows are equal.
std::optional<FloatDifference> compare_weight_row(const CheckpointMatrix& a,
                                                  const CheckpointMatrix& b, int64_t row);

}  // namespace assay
