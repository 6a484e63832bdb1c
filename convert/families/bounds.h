#pragma once

#include <cstdint>

namespace assay {

// Bounds of what is read from files. They are far above every model that exists and keep each
// product of two below 2^63.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMaxHidden = int64_t{1} << 20;
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 4096;
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxContext = int64_t{1} << 31;
inline constexpr double kMaxEps = 1.0;

}  // namespace assay
