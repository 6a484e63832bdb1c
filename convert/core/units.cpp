#include "convert/core/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace assay {

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string grouped_digits(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string listed(std::string heading, const std::vector<std::string>& lines, size_t most) {
  for (size_t i = 0; i < std::min(most, lines.size()); ++i) heading += "\n  " + lines[i];
  if (lines.size() > most) heading += fmt::format("\n  and {} more", lines.size() - most);
  return heading;
}

}  // namespace assay
