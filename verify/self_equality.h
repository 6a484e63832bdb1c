#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "runtime/executor.h"

namespace assay {

/// One way of dealing the same tokens to calls, with the hash of its logits.
struct ServingMode {
  std::string name;    // "chunks of 7", "4 sequences together"
  std::string sha256;  // of the mode's logits as little-endian fp32
  std::string expected_sha256;
  std::string first_difference;  // empty if equal

  bool equal() const { return sha256 == expected_sha256; }
};

/// A model against itself (case B72): logits of every position of one prompt, fed whole, in chunks
/// of 1, 7 and 64 and again after another prompt; then 2, 3 and 4 sequences of different lengths
/// together, prefill and three decode steps, against each alone.
struct SelfEquality {
  int64_t n_tokens = 0;  // of the longest prompt
  std::vector<ServingMode> modes;

  bool equal() const;
  Json to_json() const;
};

/// `token_ids` is the longest prompt; the others are its tails. The executor needs
/// kSelfEqualitySequences sequences (fewer: fewer go together) and room for the prompt and
/// kSelfEqualityDecodeSteps more tokens.
inline constexpr int kSelfEqualitySequences = 4;
inline constexpr int64_t kSelfEqualityDecodeSteps = 3;
SelfEquality check_self_equality(Executor& executor, std::span<const int32_t> token_ids);

}  // namespace assay
