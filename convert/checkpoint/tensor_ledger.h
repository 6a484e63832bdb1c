#pragma once

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/dtype.h"
#include "convert/safetensors.h"

namespace assay {

/// Checks the tensors of a Hugging Face folder against what is expected of them: what was looked
/// up counts as used, and every disagreement is collected, so that one error names them all.
class TensorLedger {
 public:
  explicit TensorLedger(const SafetensorsModel& model) : model_(model) {}

  bool has(std::string_view name) const { return model_.find(name) != nullptr; }
  /// The entry, which counts as used; nullptr if there is none.
  const SafetensorsEntry* take(const std::string& name);
  /// As take; a missing tensor, another shape or a dtype that is not in `dtypes` is a problem and
  /// gives nullptr.
  const SafetensorsEntry* require(const std::string& name, const Shape& shape,
                                  std::initializer_list<DType> dtypes);
  void problem(std::string line) {
    if (std::ranges::find(problems_, line) == problems_.end()) problems_.push_back(std::move(line));
  }
  /// Names that nothing has used.
  std::vector<std::string> unused() const;
  /// Throws a FormatError that begins with `path` if there are problems.
  void throw_problems(const std::string& path) const;

 private:
  const SafetensorsModel& model_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> problems_;
};

}  // namespace assay
