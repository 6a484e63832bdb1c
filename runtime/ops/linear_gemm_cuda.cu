#include "runtime/ops/linear_gemm_cuda.cuh"

namespace assay::cuda {

void launch_gemm(const DeviceMatrix& matrix, const DeviceActivations& x, const float* bias,
                 float* out, int32_t out_stride, int32_t tokens, Epilogue epilogue,
                 int32_t fault_op, DeviceFault* fault, cudaStream_t stream) {
  const GemmLaunch launch{matrix, x,        bias,     out,   out_stride,
                          tokens, epilogue, fault_op, fault, stream};
  switch (matrix.kind) {
    case MatrixKind::kGroup4:
      return run_gemm_group4(launch);
    case MatrixKind::kGroup8:
      return run_gemm_group8(launch);
    case MatrixKind::kAffine4:
      return launch.run<MatrixKind::kAffine4, 4>();
    case MatrixKind::kSuper4:
      return launch.run<MatrixKind::kSuper4, 1>();
    case MatrixKind::kSuper6:
      return launch.run<MatrixKind::kSuper6, 1>();
    case MatrixKind::kFloat16:
      return launch.run<MatrixKind::kFloat16, 1>();
  }
}

}  // namespace assay::cuda
