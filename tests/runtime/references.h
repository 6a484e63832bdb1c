#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/json.h"
#include "convert/safetensors.h"
#include "runtime/executor.h"

namespace assay::test {

/// Results of an independent fp32 implementation for one small model (README of that folder):
/// logits of prompts, hidden states, cache contents, greedy runs, NLL windows.
class References {
 public:
  /// `folder`: …/references/<model>
  explicit References(const std::string& folder) : folder_(folder) {}

  Json json(const std::string& name) const { return read_json_file(folder_ + "/" + name); }
  SafetensorsFile file(const std::string& name) const {
    return SafetensorsFile::open(folder_ + "/" + name);
  }
  /// Ids of prompts.json by prompt id, in file order.
  std::vector<std::pair<std::string, std::vector<int32_t>>> prompts() const;
  std::vector<int32_t> prompt(const std::string& id) const;

 private:
  std::string folder_;
};

std::vector<int32_t> ids_of(const Json& array);
std::vector<float> floats_of(const SafetensorsFile& file, const std::string& tensor);
std::vector<int32_t> int32s_of(const SafetensorsFile& file, const std::string& tensor);

/// Largest and root-mean-square difference.
struct Difference {
  double max_abs = 0.0;
  double rms = 0.0;
};
Difference difference(std::span<const float> actual, std::span<const float> expected);
double rms(std::span<const float> values);

/// Logits of one prompt in one call, on an empty sequence 0.
std::vector<float> prompt_logits(Executor& executor, std::span<const int32_t> ids, LogitRows rows,
                                 const OpObserver& observer = nullptr);

}  // namespace assay::test
