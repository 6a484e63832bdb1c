#include "convert/checkpoint/tensor_ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/core/units.h"
#include "convert/core/words.h"

namespace assay {

const SafetensorsEntry* TensorLedger::take(const std::string& name) {
  used_.insert(name);
  return model_.find(name);
}

const SafetensorsEntry* TensorLedger::require(const std::string& name, const Shape& shape,
                                              std::initializer_list<DType> dtypes) {
  const SafetensorsEntry* entry = take(name);
  if (entry == nullptr) {
    problem(fmt::format("\"{}\" {} is missing", name, to_string(shape)));
    return nullptr;
  }
  if (entry->view.shape != shape) {
    problem(fmt::format("\"{}\" has shape {}, expected {}", name, to_string(entry->view.shape),
                        to_string(shape)));
    return nullptr;
  }
  if (std::find(dtypes.begin(), dtypes.end(), entry->view.dtype) == dtypes.end()) {
    problem(fmt::format("\"{}\" is of type {}, expected {}", name, dtype_name(entry->view.dtype),
                        join_words(dtypes, " or ", dtype_name)));
    return nullptr;
  }
  return entry;
}

std::vector<std::string> TensorLedger::unused() const {
  std::vector<std::string> names = model_.names();
  std::erase_if(names, [this](const std::string& name) { return used_.contains(name); });
  return names;
}

void TensorLedger::throw_problems(const std::string& path) const {
  if (problems_.empty()) return;
  throw FormatError(listed(path + ": the tensors do not fit config.json:", problems_));
}

}  // namespace assay
