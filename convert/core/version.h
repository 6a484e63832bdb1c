#pragma once

#include <string_view>

namespace assay {

/// "0.1.0", from the project's CMakeLists.txt. SemVer.
std::string_view version();

/// The arithmetic of every result (README, "What bit-identical means").
inline constexpr std::string_view kArithmetic = "canonical-1";

}  // namespace assay
