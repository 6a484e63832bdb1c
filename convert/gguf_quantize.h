#pragma once

#include <memory>

#include "convert/gguf.h"
#include "convert/gguf_plan.h"

namespace assay {

struct GgufQuantizeOptions {
  MixOptions mix = {};  // with a mix
  std::shared_ptr<const ImportanceMatrix> importance = {};
  bool allow_requantize = false;  // tensors that are quantized already may be encoded anew
  bool allow_infinite = false;    // values may become infinite or stay NaN in a narrower type
  bool keep_split = false;        // parts as in the source
  uint64_t split_max_bytes = 0;   // 0: one file
};

/// A GGUF file on its way into one with other types, of any family: keys are taken over, tensors
/// are written in the order of llama-quantize (with keep_split: in their own).
class GgufQuantize : public GgufPlan {
 public:
  /// Throws FormatError naming a tensor that is quantized already unless allow_requantize.
  GgufQuantize(std::shared_ptr<const GgufFile> file, const GgufQuantizeOptions& options);

 private:
  std::optional<StoredRows> stored_rows(size_t index) const override;
  void write_tensor(size_t index,
                    const std::function<void(std::span<const std::byte>)>& sink) override;

  std::shared_ptr<const GgufFile> file_;
  GgufQuantizeOptions options_;
  std::vector<const GgufTensor*> sources_;  // of each of tensors_
};

}  // namespace assay
