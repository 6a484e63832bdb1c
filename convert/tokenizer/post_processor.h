#pragma once

#include <cstdint>
#include <vector>

#include "convert/tokenizer/part.h"
#include "convert/tokenizer/vocabulary.h"

namespace assay::tokenization {

/// What the "post_processor" of tokenizer.json puts around the ids of a single sequence.
struct PostProcessor {
  std::vector<int32_t> prefix, suffix;
  bool has_pair_template = false;
};

/// Throws UnsupportedError for a type that is not implemented. Ids must be of `vocabulary`.
PostProcessor make_post_processor(const Part& part, const Vocabulary& vocabulary);

}  // namespace assay::tokenization
