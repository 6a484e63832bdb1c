#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/executor.h"

namespace assay::test {

/// What is wrong with a fake model; everything off: a sound one.
struct FakeFaults {
  /// Changes the lowest bit of one value of this op at one position (and of every value computed
  /// from it): "layers.0.mlp.up_proj".
  std::string op = {};
  int64_t position = 0;
  int64_t index = 0;
  /// Adds this to every logit at `position` (with an empty op).
  float logit_shift = 0.0f;
  /// Adds this to logit `index` at `position`, which moves the distribution.
  float one_logit_shift = 0.0f;
  /// Logits of calls with more than one token in a sequence differ in one bit.
  bool depends_on_chunks = false;
  /// Logits of calls with more than one sequence differ in one bit.
  bool depends_on_batch = false;
  /// reset() keeps the old tokens in mind.
  bool forgets_reset = false;
};

inline constexpr int64_t kFakeVocab = 40;
inline constexpr int64_t kFakeHidden = 8;

/// An executor whose every value is a hash of the tokens seen so far: logits depend on the whole
/// history and on nothing else, unless a fault says so. Two layers.
std::unique_ptr<Executor> make_fake_executor(const ExecutorOptions& options = {},
                                             const FakeFaults& faults = {});

}  // namespace assay::test
