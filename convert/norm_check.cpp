#include "convert/norm_check.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace assay {

std::string folded_norms_warning(const Checkpoint& checkpoint) {
  constexpr double kNear = 0.1;
  int n_norms = 0;
  if (checkpoint.kind() == CheckpointKind::kGguf) return {};
  for (const TensorEntry& entry : checkpoint.tensors()) {
    if (entry.gguf_transform != GgufTransform::kAddOne) continue;
    const std::vector<float> values = checkpoint.vector(entry.role, entry.layer);  // 1 + w
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    if (std::abs(mean - 2.0) > kNear) return {};
    ++n_norms;
  }
  if (n_norms == 0) return {};
  return fmt::format(
      "all {} norms that act as 1 + w have a mean near 1: the folder may hold 1 + w already, from "
      "a "
      "tool that added the 1, and would be wrong with another 1",
      n_norms);
}

}  // namespace assay
