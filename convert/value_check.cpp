#include "convert/value_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/parallel.h"

namespace assay {
namespace {

/// Groups of a row whose scale is zero, so that all of their weights are.
int64_t zero_scales(const CheckpointMatrix& matrix, int64_t row, IntegerRow& integers) {
  matrix.read_integers(row, integers);
  return std::count(integers.scales.begin(), integers.scales.end(), 0.0f);
}

}  // namespace

std::vector<std::string> value_faults(const Checkpoint& checkpoint, const ReadProgress& progress) {
  std::vector<const TensorEntry*> table;
  for (const TensorEntry& entry : checkpoint.tensors()) table.push_back(&entry);
  for (const TensorEntry& entry : checkpoint.prediction_tensors()) table.push_back(&entry);
  std::vector<std::string> faults(table.size());
  parallel_for(static_cast<int64_t>(table.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TensorEntry& entry = *table[static_cast<size_t>(i)];
      std::string& fault = faults[static_cast<size_t>(i)];
      if (progress) progress(entry.hf_name);
      try {
        if (!entry.is_matrix()) {
          checkpoint.vector(entry.role, entry.layer);
          continue;
        }
        const CheckpointMatrix matrix = checkpoint.matrix(entry);
        for (int64_t row = 0; row < matrix.view.rows && fault.empty(); ++row) {
          if (const auto found = matrix.view.format->find_fault(matrix.view, row)) {
            fault = fmt::format("\"{}\", row {}: {}", entry.hf_name, row, *found);
          }
        }
        int64_t n_zero = 0;
        IntegerRow integers;
        const bool has_scales = matrix.view.scales.bytes.data() != nullptr;
        for (int64_t row = 0; row < matrix.view.rows && has_scales && fault.empty(); ++row) {
          n_zero += zero_scales(matrix, row, integers);
        }
        if (n_zero > 0) {
          fault = fmt::format("\"{}\": {} scales are zero", entry.hf_name, n_zero);
        }
      } catch (const FormatError& error) {
        fault = error.what();
      }
    }
  });
  std::erase_if(faults, [](const std::string& fault) { return fault.empty(); });
  return faults;
}

}  // namespace assay
