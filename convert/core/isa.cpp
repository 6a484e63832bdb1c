#include "convert/core/isa.h"

#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "convert/core/error.h"

namespace assay {
namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 3> kNames = {{
    {Isa::kScalar, "scalar"},
    {Isa::kAvx2, "avx2"},
    {Isa::kAvx512, "avx512"},
}};

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;  // every CPU with FMA has F16C, too
#endif
  return Isa::kScalar;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const auto& [value, name] : kNames) {
    if (value == isa) return name;
  }
  return "?";
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa active_isa() { return chosen_isa().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  if (isa > best_isa()) {
    throw UnsupportedError("instruction set " + std::string(isa_name(isa)) +
                           ": this CPU has it not; the best here is " +
                           std::string(isa_name(best_isa())));
  }
  chosen_isa().store(isa, std::memory_order_relaxed);
}

}  // namespace assay
