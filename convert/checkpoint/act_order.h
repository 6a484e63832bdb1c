#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "convert/checkpoint.h"

namespace assay {

/// A quantized matrix whose columns belong to groups in another order than they lie (GPTQ with
/// desc_act, compressed-tensors with actorder "group"): column k takes the scale and zero point of
/// group group_of[k]. No block format can say that, so it is read as the fp32 values that it means,
/// in the order of the columns.
class ActOrderMatrix final : public TensorOnDisk {
 public:
  /// `codes`: the same matrix as if group_of[k] were k / group_size. group_of[k] < n_groups.
  ActOrderMatrix(std::unique_ptr<const TensorOnDisk> codes, std::vector<int32_t> group_of);
  CheckpointMatrix load() const override;

 private:
  std::unique_ptr<const TensorOnDisk> codes_;
  std::vector<int32_t> group_of_;  // (columns)
};

}  // namespace assay
