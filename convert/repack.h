#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/checkpoint.h"

namespace assay {

/// What moving the codes of a W4A16 matrix into blocks of some format would change.
struct RepackCheck {
  int64_t n_groups = 0;
  int64_t n_rounded = 0;     // groups whose scale or minimum is rounded; codes stay
  int64_t n_impossible = 0;  // groups whose codes do not fit
  std::string first;         // the first obstacle with its place

  bool exact() const { return n_rounded == 0 && n_impossible == 0; }
};

/// Looks at every scale and zero point. `matrix` is in a W4A16 format.
RepackCheck check_repack(const CheckpointMatrix& matrix, const WeightFormat& target);

/// The formats that codes of this matrix can be moved into with every dequantized value the same,
/// fewest bits first. Empty if there is none.
std::vector<const WeightFormat*> exact_repack_formats(const CheckpointMatrix& matrix);

/// The smallest format that the codes fit into, with scales rounded where need be; nullptr if none.
const WeightFormat* smallest_format_for_codes(const CheckpointMatrix& matrix);

/// Bits that a weight takes in `format`, scales included; W4A16 formats: `group_size` columns and
/// `scale_dtype` per scale.
double bits_per_weight(const WeightFormat& format, int64_t group_size,
                       std::optional<DType> scale_dtype);

}  // namespace assay
