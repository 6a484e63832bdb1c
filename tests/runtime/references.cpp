#include "tests/runtime/references.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convert/core/error.h"

namespace assay::test {
namespace {

const TensorView& find(const SafetensorsFile& file, const std::string& tensor) {
  const SafetensorsEntry* entry = file.find(tensor);
  if (entry == nullptr) throw FormatError(file.path() + " has no tensor " + tensor);
  return entry->view;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int32_t>>> References::prompts() const {
  const Json document = json("prompts.json");
  std::vector<std::pair<std::string, std::vector<int32_t>>> result;
  for (const Json& prompt : document.at("prompts").as_array()) {
    result.emplace_back(prompt.at("id").as_string(), ids_of(prompt.at("token_ids")));
  }
  return result;
}

std::vector<int32_t> References::prompt(const std::string& id) const {
  for (auto& [name, ids] : prompts()) {
    if (name == id) return ids;
  }
  throw FormatError(folder_ + " has no prompt " + id);
}

std::vector<int32_t> ids_of(const Json& array) {
  std::vector<int32_t> ids;
  for (const Json& id : array.as_array()) ids.push_back(static_cast<int32_t>(id.as_integer()));
  return ids;
}

std::vector<float> floats_of(const SafetensorsFile& file, const std::string& tensor) {
  const TensorView& view = find(file, tensor);
  std::vector<float> values(static_cast<size_t>(n_elements(view.shape)));
  widen_to_f32(view, values);
  return values;
}

std::vector<int32_t> int32s_of(const SafetensorsFile& file, const std::string& tensor) {
  const TensorView& view = find(file, tensor);
  std::vector<int32_t> values(static_cast<size_t>(n_elements(view.shape)));
  if (view.dtype != DType::kI32) throw FormatError(tensor + " is not I32");
  std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return values;
}

Difference difference(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) throw FormatError("sizes differ");
  Difference result;
  double squares = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::fabs(double{actual[i]} - double{expected[i]});
    result.max_abs = std::max(result.max_abs, d);
    squares += d * d;
  }
  result.rms = std::sqrt(squares / static_cast<double>(actual.size()));
  return result;
}

double rms(std::span<const float> values) {
  double squares = 0.0;
  for (const float v : values) squares += double{v} * double{v};
  return std::sqrt(squares / static_cast<double>(values.size()));
}

std::vector<float> prompt_logits(Executor& executor, std::span<const int32_t> ids, LogitRows rows,
                                 const OpObserver& observer) {
  executor.reset(0);
  std::vector<float> logits;
  const BatchItem item{0, ids, rows};
  executor.forward(std::span(&item, 1), logits, observer);
  return logits;
}

}  // namespace assay::test
