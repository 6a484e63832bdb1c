#include "verify/describe.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace assay {

std::string describe_float(float value) {
  return fmt::format("{:.9g} (0x{:08x})", value, std::bit_cast<uint32_t>(value));
}

std::string describe_figure(double value) {
  if (value == 0.0) return "0";
  const double magnitude = std::fabs(value);
  if (magnitude >= 1e-3 && magnitude < 1e5) return fmt::format("{:.4g}", value);
  return fmt::format("{:.3e}", value);
}

}  // namespace assay
