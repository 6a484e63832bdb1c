#pragma once

/// One inline function for the CPU and for CUDA.
#if defined(__CUDACC__)
#define ASSAY_HD __host__ __device__ __forceinline__
#else
#define ASSAY_HD inline
#endif
