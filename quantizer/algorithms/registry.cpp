#include <array>
#include <string>

#include "convert/core/error.h"
#include "quantizer/algorithms/algorithms.h"

namespace assay {
namespace {

constexpr std::array<Algorithm, 2> kAlgorithms = {{
    {"gptq", "error feedback along the columns (GPTQ, arXiv 2210.17323)", true, quantize_gptq},
    {"rtn", "round to nearest; needs no calibration with --scales min-max", false, quantize_rtn},
}};

}  // namespace

std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw UsageError("algorithm: found \"" + std::string(name) + "\", expected one of " + known);
}

}  // namespace assay
