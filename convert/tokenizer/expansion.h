#pragma once

#include <cstddef>
#include <string>

#include "convert/core/error.h"

namespace assay::tokenization {

/// Steps of a model file may make a text longer, a chain of them exponentially so. Refuses what no
/// real tokenizer needs, before memory runs out.
inline void check_expansion(size_t n_before, size_t n_after) {
  constexpr size_t kTimes = 64, kBytes = size_t{1} << 20;
  if (n_after > kBytes && n_after / kTimes > n_before) {
    throw UnsupportedError("the tokenizer turns a text of " + std::to_string(n_before) +
                           " bytes into more than " + std::to_string(n_after) +
                           "; steps that lengthen a text so much are not implemented");
  }
}

}  // namespace assay::tokenization
