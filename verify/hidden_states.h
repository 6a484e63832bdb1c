#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/executor.h"

namespace assay {

/// Hidden states of one prompt under the names of a reference bundle: "embeddings" (input of layer
/// 0), "layer.<i>.output" (residual stream after layer i), "final_norm" (input of the head).
/// Each (n_tokens, hidden_size), row-major.
std::map<std::string, std::vector<float>> run_hidden_states(Executor& executor,
                                                            std::span<const int32_t> token_ids);

}  // namespace assay
