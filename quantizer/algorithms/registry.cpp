#include "convert/core/words.h"
#include "quantizer/quantize.h"

namespace assay {

// <name>.cpp
int64_t gptq_codes(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                   std::span<uint8_t> codes);
uint64_t gptq_bytes_per_thread(int64_t in_features);
int64_t rtn_codes(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                  std::span<uint8_t> codes);

namespace {

constexpr Algorithm kAlgorithms[] = {
    {.name = "gptq",
     .description = "error feedback along the columns (GPTQ, arXiv 2210.17323); needs calibration "
                    "data",
     .codes = gptq_codes,
     .bytes_per_thread = gptq_bytes_per_thread},
    {.name = "rtn",
     .description = "round to nearest; needs no calibration data with --scales min-max",
     .needs_calibration = false,
     .takes_steps = false,
     .codes = rtn_codes},
};

}  // namespace

std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

const Algorithm& find_algorithm(std::string_view name) {
  return find_by_name(kAlgorithms, "algorithm", name);
}

}  // namespace assay
