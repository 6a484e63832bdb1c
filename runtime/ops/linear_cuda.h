#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "convert/core/host_device.h"

// Linear layers on CUDA: the bits of ops/linear.h. Plain data and launchers; no model class.

namespace assay::cuda {

inline constexpr int kTileRows = 16;       // rows of one mma tile
inline constexpr int kGroupColumns = 128;  // activation group
inline constexpr int kSegmentGroups = 4;   // groups of one segment (512 columns)

/// Arithmetic of a row, by fold and code width.
enum class MatrixKind : int32_t {
  kGroup4,   // 4-bit codes, integer zero, scale per piece
  kGroup8,   // 8-bit codes, integer zero, scale per piece
  kAffine4,  // 4-bit codes, scale and float min per 32 columns
  kSuper4,   // Q4_K: d, dmin per 256; 6-bit sub-scales and minima per 32
  kSuper6,   // Q6_K: d per 256; int8 sub-scales per 16; codes minus 32
  kFloat16,  // block int16 rows: two planes, scale 2^e per 128
};

enum class ScaleType : int32_t { kF16, kBF16, kF32 };

/// A matrix on the device in the kernels' layout: units of 16 rows (a tile) and 512 columns (a
/// segment), each one contiguous piece of memory that starts and ends at multiples of 128 bytes.
/// A unit is a header, the scales of its rows, then the codes of its four groups of 128 columns.
/// Inside a group the codes of one lane (row r = lane / 4 and r + 8, t = lane % 4) are 16-byte
/// words that hold, per block j of 32 columns, columns 32j + 4t … + 3 and 32j + 16 + 4t … + 3 as
/// two 4-byte words: the operand order of mma.m16n8k32. Codes of 4 bits of block j + 1, j even, lie
/// in the high nibbles of block j's, where they can be used as they lie; of kSuper6 columns 32j +
/// 16 + 4t … + 3 lie above 32j + 4t … + 3. Groups past the end of a row have codes of zero bits.
struct DeviceMatrix {
  const std::byte* units = nullptr;  // (tiles, segments, unit_bytes)
  MatrixKind kind = MatrixKind::kGroup4;
  ScaleType scale_type = ScaleType::kF16;
  int32_t pieces = 1;          // scales per 128 columns: 1, 2 or 4
  int32_t zero_constant = -1;  // zero point of all groups, or −1: read `extra`
  int32_t rows = 0;
  int32_t columns = 0;
  int32_t tiles = 0;
  int32_t groups = 0;
  int32_t segments = 0;
  // Header. kGroup*, kAffine4: scales (16, 4·pieces) scale_type; kSuper4: uint4 (16, 2): {d|dmin,
  // sub-scales, minima}; kSuper6: int8 (16, 32); kFloat16: bf16 (16, 4). From extra_at on: zeros
  // (uint8, like scales), mins (like scales), d of kSuper6 (16, 2).
  int32_t extra_at = 0;
  int32_t header_bytes = 0;
  int32_t unit_bytes = 0;
};

/// 16-byte words of codes per tile and group.
ASSAY_HD constexpr int words_per_group(MatrixKind kind) {
  switch (kind) {
    case MatrixKind::kGroup4:
    case MatrixKind::kAffine4:
    case MatrixKind::kSuper4:
      return 64;
    case MatrixKind::kSuper6:
      return 96;
    case MatrixKind::kGroup8:
      return 128;
    case MatrixKind::kFloat16:
      return 256;
  }
  return 0;
}

/// Whether codes are of 4 bits, two blocks of 32 columns in the nibbles of two words.
ASSAY_HD constexpr bool has_block_pairs(MatrixKind kind) {
  return kind == MatrixKind::kGroup4 || kind == MatrixKind::kAffine4 || kind == MatrixKind::kSuper4;
}

/// Sets extra_at, header_bytes and unit_bytes from kind, pieces, scale type and zero point.
ASSAY_HD constexpr void set_unit_layout(DeviceMatrix& m) {
  int scales = 0, extra = 0;
  switch (m.kind) {
    case MatrixKind::kSuper4:
      scales = kTileRows * 32;
      break;
    case MatrixKind::kSuper6:
      scales = kTileRows * 32;
      extra = kTileRows * 4;
      break;
    case MatrixKind::kFloat16:
      scales = kTileRows * 8;
      break;
    default: {
      const int n = kTileRows * kSegmentGroups * m.pieces;
      scales = n * (m.scale_type == ScaleType::kF32 ? 4 : 2);
      extra = m.kind == MatrixKind::kAffine4 ? scales : m.zero_constant < 0 ? n : 0;
    }
  }
  m.extra_at = scales;
  m.header_bytes = (scales + extra + 127) / 128 * 128;
  m.unit_bytes = m.header_bytes + kSegmentGroups * words_per_group(m.kind) * 16;
}

/// Bytes of all units.
ASSAY_HD constexpr uint64_t matrix_bytes(const DeviceMatrix& m) {
  return static_cast<uint64_t>(m.tiles) * static_cast<uint64_t>(m.segments) *
         static_cast<uint64_t>(m.unit_bytes);
}

/// Bytes that a multiplication reads: all but the padding of the last groups of a row.
ASSAY_HD constexpr uint64_t bytes_read(const DeviceMatrix& m) {
  const int padding = m.segments * kSegmentGroups - m.groups;
  return matrix_bytes(m) - static_cast<uint64_t>(m.tiles) * static_cast<uint64_t>(padding) *
                               static_cast<uint64_t>(words_per_group(m.kind)) * 16;
}

/// Header of a unit; its codes begin header_bytes later.
ASSAY_HD const std::byte* unit_at(const DeviceMatrix& m, int tile, int segment) {
  return m.units + (static_cast<size_t>(tile) * static_cast<size_t>(m.segments) +
                    static_cast<size_t>(segment)) *
                       static_cast<size_t>(m.unit_bytes);
}

/// Block-int16 rows in operand order: per token `padded_columns`·2 bytes of planes (per 64 columns
/// 128 bytes: [plane][t][two blocks of 8 bytes]), then sums over 16 (high | low << 16), 32 and 128
/// columns, and scales.
struct DeviceActivations {
  int8_t* planes = nullptr;    // (tokens, groups · 256)
  int32_t* sums16 = nullptr;   // (tokens, groups · 8)
  int32_t* sums32 = nullptr;   // (tokens, groups · 4)
  int32_t* sums128 = nullptr;  // (tokens, groups)
  float* scales = nullptr;     // (tokens, groups)
  int32_t groups = 0;
};

/// Where quantized rows of `tokens` tokens lie in shared memory.
struct InputLayout {
  int planes, sums16, sums32, sums128, scales;
};

/// Takes room for them at `offset`, which moves on; every part at a multiple of 16. Without
/// has_sums16 (kSuper6 alone reads them) there is no place for those: −1.
ASSAY_HD constexpr InputLayout input_layout(int& offset, int groups, int tokens,
                                            bool has_sums16 = true) {
  InputLayout at{};
  const auto take = [&offset](int bytes) {
    const int here = offset;
    offset += (bytes + 15) / 16 * 16;
    return here;
  };
  at.planes = take(tokens * groups * 256);
  at.sums16 = has_sums16 ? take(tokens * groups * 32) : -1;
  at.sums32 = take(tokens * groups * 16);
  at.sums128 = take(tokens * groups * 4);
  at.scales = take(tokens * groups * 4);
  return at;
}

/// First number that is not finite, or too large: written once by whichever thread is first.
struct DeviceFault {
  int32_t op = 0;     // 1-based id of the op in the program; 0: none
  int32_t index = 0;  // element
  float value = 0.0f;
};

enum class Epilogue : int32_t { kStore, kAddTo, kSwiGlu };

/// Tiles [begin, end) of matrix `matrix` for one thread block.
struct alignas(16) BlockShare {
  int32_t matrix = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

inline constexpr int kMaxGemvMatrices = 3;
inline constexpr int kMaxGemvTokens = 4;

/// One launch: up to three matrices that read the same vector; out row of matrix m starts at
/// out_offset[m]. The tiles of matrix m are dealt evenly to n_blocks[m] thread blocks of their own.
struct GemvArguments {
  DeviceMatrix matrices[kMaxGemvMatrices];  // those without units are not there
  const float* bias[kMaxGemvMatrices] = {};
  int32_t out_offset[kMaxGemvMatrices] = {};
  int32_t n_blocks[kMaxGemvMatrices] = {};
  const float* x = nullptr;            // (tokens, columns) fp32
  const float* norm_weight = nullptr;  // null: quantize only
  float eps = 0.0f;
  float inverse_n = 0.0f;  // fp32(1 / columns)
  float* out = nullptr;    // (tokens, out_stride)
  int32_t out_stride = 0;
  int32_t tokens = 1;
  // x was there before the first of the dependent launches that this one belongs to: it is read at
  // once, and only results wait for the launch before.
  bool input_given = false;
  Epilogue epilogue = Epilogue::kStore;
  int32_t fault_op = 0;
  DeviceFault* fault = nullptr;
};

ASSAY_HD constexpr int n_matrices(const GemvArguments& a) {
  int n = 0;
  while (n < kMaxGemvMatrices && a.matrices[n].units != nullptr) ++n;
  return n;
}

/// y = W·quantize(norm(x)): 1 … 4 tokens. Reads the weights once. Enqueues on `stream`; with
/// `dependent`, as a programmatic dependent launch.
void launch_gemv(const GemvArguments& arguments, bool dependent, cudaStream_t stream);

/// rms_norm (if norm_weight) and quantization of rows to `out`.
void launch_norm_quantize(const float* x, int32_t x_stride, const float* norm_weight, float eps,
                          float inverse_n, int32_t columns, int32_t tokens, DeviceActivations out,
                          int32_t fault_op, DeviceFault* fault, cudaStream_t stream);

/// y = W x for any number of tokens through tensor cores; out (tokens, out_stride), or out += y.
/// kSwiGlu expects gate and up rows interleaved 8 + 8 in a tile.
void launch_gemm(const DeviceMatrix& matrix, const DeviceActivations& x, const float* bias,
                 float* out, int32_t out_stride, int32_t tokens, Epilogue epilogue,
                 int32_t fault_op, DeviceFault* fault, cudaStream_t stream);

}  // namespace assay::cuda
