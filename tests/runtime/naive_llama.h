#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "convert/checkpoint.h"

namespace assay::test {

/// Logits of every position by the formulas of transformers' modeling_llama.py in fp64 with libm,
/// layer by layer over whole sequences: no cache, no program, no block int16. For small models
/// only. (n_tokens, vocab_size)
std::vector<double> naive_llama_logits(const Checkpoint& checkpoint, std::span<const int32_t> ids);

}  // namespace assay::test
