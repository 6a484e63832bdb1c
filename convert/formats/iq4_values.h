#pragma once

#include <cstdint>

namespace assay {

/// The sixteen values of IQ4_NL and IQ4_XS. As integers of canonical-1: value + kIq4Zero.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int kIq4Zero = 127;

/// Middles between neighbours of kIq4Values.
inline constexpr float kIq4Middles[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f,
                                          -28.5f,  -16.0f, -4.5f,  7.0f,   19.0f,
                                          31.5f,   45.5f,  61.0f,  79.0f,  101.0f};

/// Code of the nearest value; the upper one of two equally near, 0 for NaN. Near a middle the
/// differences to both neighbours are exact, so that comparing with the middle is the same.
inline int nearest_iq4(float value) {
  int code = 0;
  for (const float middle : kIq4Middles) code += value >= middle ? 1 : 0;
  return code;
}

}  // namespace assay
