#include <array>
#include <string>

#include "convert/core/error.h"
#include "convert/core/words.h"
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
  return find_by_name(kAlgorithms, "algorithm", name);
}

}  // namespace assay
