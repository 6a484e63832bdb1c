#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "calibrate/dataset.h"
#include "convert/checkpoint.h"
#include "convert/importance.h"
#include "runtime/kv_cache.h"

namespace assay {

struct ImportanceRun {
  KvType kv_type = KvType::kF32;
  uint64_t activation_memory = uint64_t{1152} << 20;  // bytes; more goes to disk
  std::string spill_folder = {};
  /// Share of the run that is done, and what comes next; may throw to stop it.
  std::function<void(double share, const std::string& label)> progress = {};
};

/// Runs all windows through the model, layer by layer, and sums x² of every channel that a linear
/// of a layer reads, over all tokens: what llama-imatrix measures. An expert has sums and a count
/// of its own, over the tokens that were routed to it. One fp64 chain per channel in the order of
/// tokens, rounded once: independent of threads, memory and instruction set. Weights are named as
/// in GGUF. Throws NumericError naming the linear where an input is not finite.
ImportanceSource measure_importance(const std::shared_ptr<const Checkpoint>& checkpoint,
                                    const TokenWindows& windows, const ImportanceRun& run);

}  // namespace assay
