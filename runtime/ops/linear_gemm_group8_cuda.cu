#include "runtime/ops/linear_gemm_cuda.cuh"

namespace assay::cuda {

void run_gemm_group8(const GemmLaunch& launch) {
  switch (launch.matrix.pieces) {
    case 1:
      return launch.run<MatrixKind::kGroup8, 1>();
    case 2:
      return launch.run<MatrixKind::kGroup8, 2>();
    default:
      return launch.run<MatrixKind::kGroup8, 4>();
  }
}

}  // namespace assay::cuda
