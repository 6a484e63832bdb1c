#pragma once

#include <string>
#include <string_view>

namespace assay {

/// A number for people and machines at once: nine significant digits (enough to get the fp32 back)
/// and its bit pattern, "0.123456791 (0x3dfcd6ea)".
std::string describe_float(float value);

/// A statistic for people: four significant digits, "1.234e-05", "0.01234", "inf".
std::string describe_figure(double value);

/// U+FFFD, which stands for bytes that are no text.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace assay
