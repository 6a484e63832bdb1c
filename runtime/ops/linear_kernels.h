#pragma once

#include <cstdint>

// What the kernels of linear() share: the layout of a packed matrix, the layout of activations, and
// the table of one instruction set. Plain data only: the files that are compiled for one
// instruction set may not emit a function with a weak symbol (another file's copy of it would run
// their instructions).

namespace assay {

inline constexpr int kTileRows = 16;    // rows whose codes lie side by side
inline constexpr int kGroupQuads = 32;  // steps of 4 columns in an activation group of 128
inline constexpr int kSegmentGroups = 4;
inline constexpr int kMaxPanelTokens = 6;  // tokens that one kernel call works on

enum class KernelFold : uint8_t {
  kGroup,   // Fold::kGroup, one zero point for the whole matrix
  kZeros,   // Fold::kGroup, a zero point per row and group
  kAffine,  // Fold::kAffine
  kSuper,   // Fold::kSuperBlock
  kFloat,   // Fold::kFloat
};

enum class ScaleType : uint8_t { kF16, kBF16, kF32 };

/// Where the parts of one segment (512 columns, the last one may be shorter) of a tile lie, in
/// bytes from the segment's begin; each part is a multiple of 64 long, codes come last. Below,
/// n_sets = ⌈columns / set_columns⌉, n_subs = columns / piece.
struct SegmentLayout {
  int32_t groups = 0;      // activation groups of 128 columns
  int32_t sets = 0;        // n_sets
  int32_t scales = 0;      // (n_sets, 16) of ScaleType; w_scale, or d of a super-block
  int32_t mins = 0;        // (n_sets, 16) of ScaleType; kAffine: min, kSuper: dmin
  int32_t zeros = 0;       // (n_sets, 16) u8; kZeros
  int32_t sub_scales = 0;  // (n_subs, 16) i8; kSuper
  int32_t sub_mins = 0;    // (n_subs, 16) i8; kSuper with minima
  int32_t codes = 0;
  int32_t bytes = 0;  // of the whole segment
};

/// A packed matrix: tiles of 16 rows; a tile is its segments one after another, so each thread
/// reads memory as one stream. Codes of one step of 4 columns ("quad"): 16 lanes (rows) of 4 bytes.
///   8 bits   per quad 64 bytes
///   4 bits   per 2 quads 64 bytes, low nibbles the first
///   6 bits   per 4 quads 192 bytes: two units of low nibbles as above, then one of the high two
///            bits: bits 2t, 2t + 1 of each byte are quad t's
///   kFloat   per quad 128 bytes: the high planes, then the low planes, both plus 128
struct MatrixLayout {
  KernelFold fold = KernelFold::kGroup;
  ScaleType scale_type = ScaleType::kF16;
  int32_t code_bits = 0;      // 4, 6, 8; 16 for kFloat
  int32_t piece = 0;          // 16, 32, 64, 128: columns of one integer sum (sub-block of kSuper)
  int32_t set_columns = 0;    // 16 … 512, a power of two: columns per stored scale
  int32_t zero = 0;           // kGroup, kSuper: zero point of all codes
  bool has_mins = false;      // kSuper
  bool exact_floats = false;  // kSuper: all partial sums stay below 2^24, fp32 holds them exactly
  int64_t rows = 0;
  int64_t n_tiles = 0;
  int64_t n_segments = 0;
  int64_t tile_bytes = 0;
  SegmentLayout full;  // all segments but the last
  SegmentLayout last;
  const uint8_t* data = nullptr;
};

/// Activations of 1 … 6 tokens in the order in which the kernels read them. The panels of a call
/// lie segment by segment: segment s of one panel, segment s of the next, …, then s + 1, so kernels
/// that go over all panels with one segment of weights read memory in one direction. All numbers
/// are 32 bits wide; per activation group, n_subs = 128 / piece:
///   scales (n_tokens)              fp32 s_g
///   aux:
///     kGroup  (n_subs, n_tokens, 2)  −zero·Σh, −zero·Σl
///     kZeros  (n_subs, n_tokens)     Σq
///     kAffine (n_subs, n_tokens)     fp32 of Σq
///     kSuper  (n_subs, n_tokens, 2)  −zero·Σh, −zero·Σl
///     kFloat  (n_tokens, 3)          −128·Σh, −128·(Σh + Σl), −128·Σl
///   mins, kSuper with minima or a zero point:
///     (⌈n_subs / 2⌉, n_tokens, 2)    pairs of i16: Σh of two sub-blocks, Σl of two
///   quads (32, n_tokens, 2)        4 bytes of the high plane, 4 of the low; or 4 q as i16, where
///                                  LinearKernels::words says so
///         (32, n_tokens, 3)        LinearKernels::float_words: i16 pairs q_0, q_2 and q_1, q_3,
///         then
///                                  4 bytes of the high plane
struct Panel {
  const int32_t* data = nullptr;
  int32_t n_tokens = 0;
  int32_t first_token = 0;
  // In units of int32; the first three within a group, where scales come first:
  int32_t aux = 0;
  int32_t mins = 0;
  int32_t quads = 0;
  int32_t group_stride = 0;
  int64_t segment_stride = 0;
};

/// One call: rows of tiles [tile_begin, tile_end) times all panels.
struct LinearCall {
  const MatrixLayout* matrix = nullptr;
  const Panel* panels = nullptr;
  int64_t n_panels = 0;
  const float* bias = nullptr;  // (rows) or nullptr
  float* out = nullptr;         // (n_tokens, rows), row stride out_stride
  int64_t out_stride = 0;
};

struct LinearKernels {
  int32_t panel_tokens;        // most tokens of a panel
  int32_t panel_tokens_float;  // the same for kFloat
  int64_t max_panels;          // most panels of one call
  bool words;                  // takes whole activations with 8-bit codes but kSuper's
  bool float_words;            // takes them, and the high plane, with kFloat
  /// Returns whether any sum (before the bias) is infinite or NaN.
  bool (*run)(const LinearCall& call, int64_t tile_begin, int64_t tile_end);
};

// `static`: internal linkage, see above.

static inline const SegmentLayout& segment_layout(const MatrixLayout& matrix, int64_t segment) {
  return segment + 1 == matrix.n_segments ? matrix.last : matrix.full;
}

static inline const int32_t* panel_segment(const Panel& panel, int64_t segment) {
  return panel.data + segment * panel.segment_stride;
}

static inline int log2_exact(int power_of_two) {
  int shift = 0;
  while ((1 << shift) < power_of_two) ++shift;
  return shift;
}

static inline bool matrix_has_mins(const MatrixLayout& matrix) {
  return matrix.fold == KernelFold::kAffine ||
         (matrix.fold == KernelFold::kSuper && matrix.has_mins);
}

const LinearKernels& linear_kernels_scalar();
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();

}  // namespace assay
