#include <atomic>

#include "convert/core/parallel.h"
#include "quantizer/grid.h"
#include "quantizer/quantize.h"

namespace assay {

int64_t rtn_codes(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                  std::span<uint8_t> codes) {
  const auto columns = static_cast<size_t>(problem.in_features);
  std::atomic<int64_t> n_cut = 0;
  parallel_for(problem.out_features, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const size_t first = static_cast<size_t>(row) * columns;
      n_cut += nearest_codes(problem.weights.subspan(first, columns), grid, row, options.bits,
                             codes.subspan(first, columns));
    }
  });
  return n_cut.load();
}

}  // namespace assay
