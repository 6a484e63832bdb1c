#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace assay {

/// Instruction sets of the CPU paths; every one gives the same bits. kAvx512 means F, BW, DQ, VL
/// and VNNI together.
enum class Isa { kScalar, kAvx2, kAvx512 };

std::string_view isa_name(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);
/// The best one that this CPU has.
Isa best_isa();
/// The one in use: best_isa() unless force_isa was called.
Isa active_isa();
/// Throws UnsupportedError if the CPU lacks it.
void force_isa(Isa isa);

/// The table of kernels for active_isa(): what one of these functions returns. Only the first need
/// exist on processors that have no other instruction set.
template <auto kScalar, auto kAvx2, auto kAvx512>
decltype(auto) by_isa() {
#if defined(__x86_64__)
  const Isa isa = active_isa();
  if (isa == Isa::kAvx512) return kAvx512();
  if (isa == Isa::kAvx2) return kAvx2();
#endif
  return kScalar();
}

}  // namespace assay
