#pragma once

#include <cmath>
#include <cstdint>

namespace assay {

/// Twice the values of E2M1 numbers (MXFP4, NVFP4). As integers of canonical-1: value + kFp4Zero.
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr int kFp4Zero = 12;

/// The first code whose value · scale is nearest to x.
inline int nearest_fp4(float x, float scale) {
  int nearest = 0;
  float smallest = std::fabs(static_cast<float>(kFp4Values[0]) * scale - x);
  for (int code = 1; code < 16; ++code) {
    const float error = std::fabs(static_cast<float>(kFp4Values[code]) * scale - x);
    if (error < smallest) {
      smallest = error;
      nearest = code;
    }
  }
  return nearest;
}

}  // namespace assay
