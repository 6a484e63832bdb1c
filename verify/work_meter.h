#pragma once

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

namespace assay {

/// Told before each piece of work: the share of all work that is done, in [0, 1], and what comes
/// next. May throw to stop.
using VerifyProgress = std::function<void(double done, std::string_view label)>;

/// Adds up pieces of known cost (tokens run through one model; a decoded token counts kDecodeCost).
class WorkMeter {
 public:
  static constexpr double kDecodeCost = 3.0;

  WorkMeter(VerifyProgress progress, double total)
      : progress_(std::move(progress)), total_(std::max(1.0, total)) {}

  /// The piece before is done; one of this cost begins.
  void begin(std::string_view label, double cost) {
    done_ += current_;
    current_ = cost;
    if (progress_) progress_(std::min(1.0, done_ / total_), label);
  }

 private:
  VerifyProgress progress_;
  double total_;
  double done_ = 0.0, current_ = 0.0;
};

}  // namespace assay
