#pragma once

#include <cstdint>

#include "runtime/ops/vector_kernels.h"

// The algorithms of VectorKernels, written once for vectors of V::kWidth floats. Each file that is
// compiled for an instruction set defines V and includes this; everything has internal linkage and
// calls nothing else (see linear_kernels.h). What V offers:
//   F, I, M           vectors of float and int32, a mask
//   first_n(n)        mask of the first n lanes, n ≤ 0: none, n ≥ kWidth: all
//   load, store       unaligned; load_first, store_first: masked, lanes outside are zeros
//   zero, set, add, sub, mul, div, fma, max, select(mask, a, b), less(a, b)
//   bits, from_bits, and_bits, any, …: see the files

#if defined(__clang__)
#define ASSAY_UNROLL _Pragma("unroll")
#else
#define ASSAY_UNROLL _Pragma("GCC unroll 32")
#endif
#define ASSAY_INLINE __attribute__((always_inline)) inline

namespace assay {
namespace {

constexpr int kLanes = 32;
constexpr int kLaneBlock = 256;      // terms of one lane sum
constexpr int64_t kPositions = 128;  // positions of an attention segment
constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinityBits = 0x7f800000;

/// e^x as exp_canonical of math.h.
template <class V>
ASSAY_INLINE typename V::F exp_lanes(typename V::F x) {
  using F = typename V::F;
  const F magic = V::set(12582912.0f);
  const F t = V::fma(x, V::set(0x1.715476p+0f), magic);
  const F n = V::sub(t, magic);
  F r = V::fma(n, V::set(-0x1.62e430p-1f), x);
  r = V::fma(n, V::set(0x1.05c610p-29f), r);
  F p = V::set(0x1.9f0894p-13f);
  p = V::fma(p, r, V::set(0x1.6d8d06p-10f));
  p = V::fma(p, r, V::set(0x1.111270p-7f));
  p = V::fma(p, r, V::set(0x1.55548ep-5f));
  p = V::fma(p, r, V::set(0x1.555554p-3f));
  p = V::fma(p, r, V::set(0.5f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  F y = V::times_power_of_two(p, n);
  y = V::select(V::less(x, V::set(-104.0f)), V::zero(), y);
  y = V::select(V::less(V::set(0x1.62e42ep+6f), x), V::from_bits(V::set_int(kInfinityBits)), y);
  return V::select(V::is_nan(x), x, y);
}

/// Hyperbolic tangent as tanh_canonical of math.h.
template <class V>
ASSAY_INLINE typename V::F tanh_lanes(typename V::F x) {
  using F = typename V::F;
  const typename V::I magnitude = V::set_int(kMagnitude);
  const F a = V::from_bits(V::and_bits(V::bits(x), magnitude));
  const F z = V::mul(x, x);
  F p = V::set(-0x1.75e1d0p-8f);
  p = V::fma(p, z, V::set(0x1.52269cp-6f));
  p = V::fma(p, z, V::set(-0x1.b83c5ap-5f));
  p = V::fma(p, z, V::set(0x1.110726p-3f));
  p = V::fma(p, z, V::set(-0x1.555532p-2f));
  const F small = V::fma(V::mul(x, z), p, x);
  const F s = exp_lanes<V>(V::add(a, a));
  const F y = V::sub(V::set(1.0f), V::div(V::set(2.0f), V::add(s, V::set(1.0f))));
  const typename V::I sign = V::and_bits(V::bits(x), V::set_int(INT32_MIN));
  const F large = V::from_bits(V::or_bits(V::and_bits(V::bits(y), magnitude), sign));
  return V::select(V::less(a, V::set(0.625f)), small, large);
}

// --- lane sums ---

/// Lanes 0 … 31 as vectors.
template <class V>
struct Lanes {
  static constexpr int kCount = kLanes / V::kWidth;
  typename V::F v[kCount];

  ASSAY_INLINE Lanes() { ASSAY_UNROLL for (int i = 0; i < kCount; ++i) v[i] = V::zero(); }
  /// acc[l] + acc[l xor 16], then 8, 4, 2, 1; lane 0.
  ASSAY_INLINE float fold() const {
    if constexpr (kCount == 2) {
      return V::fold16(V::add(v[0], v[1]));
    } else {
      return V::fold8(V::add(V::add(v[0], v[2]), V::add(v[1], v[3])));
    }
  }
};

/// Sum over blocks of 256; `term(acc, i)` adds kWidth terms from i on to acc, `part(acc, i, n)`
/// the first n < kWidth of them and leaves the other lanes of acc alone.
template <class V, class Term, class Part>
ASSAY_INLINE float sum_blocks(int64_t n, const Term& term, const Part& part) {
  float total = 0.0f;
  for (int64_t first = 0; first < n; first += kLaneBlock) {
    const int64_t end = first + kLaneBlock < n ? first + kLaneBlock : n;
    Lanes<V> lanes;
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      ASSAY_UNROLL for (int j = 0; j < Lanes<V>::kCount; ++j) {
        lanes.v[j] = term(lanes.v[j], i + j * V::kWidth);
      }
    }
    ASSAY_UNROLL for (int j = 0; j < Lanes<V>::kCount; ++j) {
      const int64_t left = end - i - j * V::kWidth;
      if (left >= V::kWidth) {
        lanes.v[j] = term(lanes.v[j], i + j * V::kWidth);
      } else if (left > 0) {
        lanes.v[j] = part(lanes.v[j], i + j * V::kWidth, static_cast<int>(left));
      }
    }
    const float block = lanes.fold();
    total = first == 0 ? block : total + block;
  }
  return total;
}

template <class V>
float lane_dot_of(const float* a, const float* b, int64_t n) {
  using F = typename V::F;
  return sum_blocks<V>(
      n, [=](F acc, int64_t i) { return V::fma(V::load(a + i), V::load(b + i), acc); },
      [=](F acc, int64_t i, int count) {
        const typename V::M mask = V::first_n(count);
        const F sum = V::fma(V::load_first(a + i, mask), V::load_first(b + i, mask), acc);
        return V::select(mask, sum, acc);
      });
}

template <class V>
float lane_sum_of(const float* a, int64_t n) {
  using F = typename V::F;
  return sum_blocks<V>(
      n, [=](F acc, int64_t i) { return V::add(acc, V::load(a + i)); },
      [=](F acc, int64_t i, int count) {
        const typename V::M mask = V::first_n(count);
        return V::select(mask, V::add(acc, V::load_first(a + i, mask)), acc);
      });
}

template <class V>
float lane_sum_exp_of(const float* x, int64_t n, float max) {
  using F = typename V::F;
  const F m = V::set(max);
  return sum_blocks<V>(
      n, [=](F acc, int64_t i) { return V::add(acc, exp_lanes<V>(V::sub(V::load(x + i), m))); },
      [=](F acc, int64_t i, int count) {
        const typename V::M mask = V::first_n(count);
        const F term = exp_lanes<V>(V::sub(V::load_first(x + i, mask), m));
        return V::select(mask, V::add(acc, term), acc);
      });
}

// --- elementwise ---

/// out[i] = f(i) for i < n, kWidth at a time; f(i, mask) may read only where the mask is set.
template <class V, class Function>
ASSAY_INLINE void for_each_vector(int64_t n, float* out, const Function& f) {
  const typename V::M all = V::first_n(V::kWidth);
  int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) V::store(out + i, f(i, all));
  if (i < n) {
    const typename V::M mask = V::first_n(static_cast<int>(n - i));
    V::store_first(out + i, mask, f(i, mask));
  }
}

template <class V>
void exp_of(const float* x, int64_t n, float* out) {
  for_each_vector<V>(n, out, [=](int64_t i, typename V::M mask) {
    return exp_lanes<V>(V::load_first(x + i, mask));
  });
}

template <class V>
void swiglu_of(const float* gate, const float* up, int64_t n, float* out) {
  using F = typename V::F;
  for_each_vector<V>(n, out, [=](int64_t i, typename V::M mask) {
    const F g = V::load_first(gate + i, mask);
    const F e = exp_lanes<V>(V::negate(g));
    return V::mul(V::div(g, V::add(V::set(1.0f), e)), V::load_first(up + i, mask));
  });
}

template <class V>
void geglu_of(const float* gate, const float* up, int64_t n, float* out) {
  using F = typename V::F;
  for_each_vector<V>(n, out, [=](int64_t i, typename V::M mask) {
    const F x = V::load_first(gate + i, mask);
    const F cube = V::mul(V::mul(x, x), x);
    const F inner = V::mul(V::set(0x1.988454p-1f), V::add(x, V::mul(V::set(0x1.6e4e26p-5f), cube)));
    const F gelu = V::mul(V::mul(V::set(0.5f), x), V::add(V::set(1.0f), tanh_lanes<V>(inner)));
    return V::mul(gelu, V::load_first(up + i, mask));
  });
}

template <class V>
void softcap_of(float* x, float c, int64_t n) {
  for_each_vector<V>(n, x, [=](int64_t i, typename V::M mask) {
    return V::mul(V::set(c), tanh_lanes<V>(V::div(V::load_first(x + i, mask), V::set(c))));
  });
}

template <class V>
void silu_of(float* x, int64_t n) {
  using F = typename V::F;
  for_each_vector<V>(n, x, [=](int64_t i, typename V::M mask) {
    const F value = V::load_first(x + i, mask);
    return V::div(value, V::add(V::set(1.0f), exp_lanes<V>(V::negate(value))));
  });
}

template <class V>
void sigmoid_gate_of(float* x, const float* gate, int64_t n) {
  using F = typename V::F;
  for_each_vector<V>(n, x, [=](int64_t i, typename V::M mask) {
    const F e = exp_lanes<V>(V::negate(V::load_first(gate + i, mask)));
    const F sigmoid = V::div(V::set(1.0f), V::add(V::set(1.0f), e));
    return V::mul(V::load_first(x + i, mask), sigmoid);
  });
}

template <class V>
void scale_of(const float* x, float factor, int64_t n, float* y) {
  for_each_vector<V>(n, y, [=](int64_t i, typename V::M mask) {
    return V::mul(V::load_first(x + i, mask), V::set(factor));
  });
}

template <class V>
void multiply_add_of(float* x, const float* a, float b, int64_t n) {
  for_each_vector<V>(n, x, [=](int64_t i, typename V::M mask) {
    return V::fma(V::load_first(a + i, mask), V::set(b), V::load_first(x + i, mask));
  });
}

template <class V>
void add_of(float* x, const float* y, int64_t n) {
  for_each_vector<V>(n, x, [=](int64_t i, typename V::M mask) {
    return V::add(V::load_first(x + i, mask), V::load_first(y + i, mask));
  });
}

template <class V>
void scale_by_weight_of(const float* x, float r, const float* weight, int64_t n, float* y) {
  for_each_vector<V>(n, y, [=](int64_t i, typename V::M mask) {
    return V::mul(V::mul(V::load_first(x + i, mask), V::set(r)), V::load_first(weight + i, mask));
  });
}

template <class V>
void rotate_of(float* x1, float* x2, const float* cos, const float* sin, int64_t n) {
  using F = typename V::F;
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const typename V::M mask = V::first_n(static_cast<int>(n - i < V::kWidth ? n - i : V::kWidth));
    const F a = V::load_first(x1 + i, mask);
    const F b = V::load_first(x2 + i, mask);
    const F c = V::load_first(cos + i, mask);
    const F s = V::load_first(sin + i, mask);
    V::store_first(x1 + i, mask, V::sub(V::mul(a, c), V::mul(b, s)));
    V::store_first(x2 + i, mask, V::add(V::mul(b, c), V::mul(a, s)));
  }
}

template <class V>
bool all_finite_of(const float* x, int64_t n) {
  typename V::I largest = V::set_int(0);
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const typename V::M mask = V::first_n(static_cast<int>(n - i < V::kWidth ? n - i : V::kWidth));
    largest = V::max_int(largest,
                         V::and_bits(V::bits(V::load_first(x + i, mask)), V::set_int(kMagnitude)));
  }
  return V::largest_int(largest) < kInfinityBits;
}

template <class V>
float largest_of(const float* x, int64_t n) {
  typename V::F m = V::set(x[0]);
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const typename V::M mask = V::first_n(static_cast<int>(n - i < V::kWidth ? n - i : V::kWidth));
    m = V::select(mask, V::max(m, V::load_first(x + i, mask)), m);
  }
  return V::largest(m);
}

template <class V>
bool round_to_cache_of(const float* x, int64_t n, KvType type, void* out) {
  typename V::I largest = V::set_int(0);  // magnitude bits after rounding, as fp32
  for (int64_t i = 0; i < n; i += V::kWidth) {
    const int count = static_cast<int>(n - i < V::kWidth ? n - i : V::kWidth);
    const typename V::F value = V::load_first(x + i, V::first_n(count));
    typename V::F rounded = value;
    if (type == KvType::kF16) {
      rounded = V::store_f16(static_cast<uint16_t*>(out) + i, count, value);
    } else if (type == KvType::kBF16) {
      rounded = V::store_bf16(static_cast<uint16_t*>(out) + i, count, value);
    } else {
      V::store_first(static_cast<float*>(out) + i, V::first_n(count), value);
    }
    largest = V::max_int(largest, V::and_bits(V::bits(rounded), V::set_int(kMagnitude)));
  }
  return V::largest_int(largest) < kInfinityBits;
}

// --- block int16 ---

ASSAY_INLINE float float_of(int32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr int32_t kLargestCodeBits = 0x46fefe00;  // 32639 = 127·256 + 127

/// The e of block_int16_exponent: smallest with amax ≤ 32639·2^e, at least −100.
ASSAY_INLINE int exponent_for(int32_t amax_bits) {
  const int k = (amax_bits >> 23) - 127;
  if (k - 14 < -100) return -100;
  return (amax_bits & 0x7fffff) <= (kLargestCodeBits & 0x7fffff) ? k - 14 : k - 13;
}

/// One group of 128; columns from n on count as zeros. Returns false for a value that is not finite
/// or above 32639·2^100.
template <class V>
ASSAY_INLINE bool quantize_group(const float* x, int64_t n, int64_t group,
                                 const BlockInt16Row& out) {
  constexpr int kVectors = 128 / V::kWidth;
  typename V::F value[kVectors];
  typename V::I amax = V::set_int(0);
  ASSAY_UNROLL for (int i = 0; i < kVectors; ++i) {
    value[i] = n >= 128 ? V::load(x + i * V::kWidth)
                        : V::load_first(x + i * V::kWidth,
                                        V::first_n(static_cast<int>(n) - i * V::kWidth));
    amax = V::max_int(amax, V::and_bits(V::bits(value[i]), V::set_int(kMagnitude)));
  }
  const int32_t largest = V::largest_int(amax);
  if (largest > kLargestCodeBits + (100 << 23)) return false;
  const int e = exponent_for(largest);
  out.scales[group] = float_of((e + 127) << 23);
  // Division by 2^e and multiplication by 2^−e round the same real number.
  const typename V::F inverse = V::set(float_of((127 - e) << 23));
  ASSAY_UNROLL for (int i = 0; i < 128; i += 16) {
    typename V::I q[16 / V::kWidth];
    ASSAY_UNROLL for (int j = 0; j < 16 / V::kWidth; ++j) {
      q[j] = V::round_to_int(V::mul(value[i / V::kWidth + j], inverse));
    }
    V::store_planes(q, out.high + group * 128 + i, out.low + group * 128 + i,
                    out.high_sums + group * 8 + i / 16, out.low_sums + group * 8 + i / 16);
  }
  return true;
}

template <class V>
bool quantize_row_of(const float* x, int64_t columns, const BlockInt16Row& out) {
  for (int64_t group = 0; group * 128 < columns; ++group) {
    if (!quantize_group<V>(x + group * 128, columns - group * 128, group, out)) return false;
  }
  return true;
}

// --- attention ---

/// Workspace of one call, in this order; `padded` = head_dim rounded up to a multiple of 16.
struct AttendSpace {
  int64_t padded;
  float* keys;     // (padded, 128): one segment, transposed
  float* values;   // (128, padded)
  float* scores;   // (kBlock, 128)
  float* partial;  // (kBlock, padded): o of the segment
  float* state;    // per query: (padded) o, then m, l, 14 unused

  static constexpr int64_t kBlock = 4;  // queries that go together

  AttendSpace(int head_dim, float* workspace)
      : padded((head_dim + 15) / 16 * 16),
        keys(workspace),
        values(keys + padded * kPositions),
        scores(values + padded * kPositions),
        partial(scores + kBlock * kPositions),
        state(partial + kBlock * padded) {}

  float* o(int64_t query) const { return state + query * (padded + 16); }
  float& m(int64_t query) const { return o(query)[padded]; }
  float& l(int64_t query) const { return o(query)[padded + 1]; }
};

/// Up to kWidth cache values from one row, widened; lanes from `count` on are zeros.
template <class V>
ASSAY_INLINE typename V::F load_cache(const void* rows, KvType type, int64_t offset, int count) {
  if (type == KvType::kF16) return V::load_f16(static_cast<const uint16_t*>(rows) + offset, count);
  if (type == KvType::kBF16)
    return V::load_bf16(static_cast<const uint16_t*>(rows) + offset, count);
  return V::load_first(static_cast<const float*>(rows) + offset, V::first_n(count));
}

/// Widens positions [from, to) of the segment that begins in row `base`: keys transposed, values as
/// they are. Keys of other positions in the same vectors become zeros.
template <class V>
void widen_segment(const AttendCall& call, int64_t base, int64_t from, int64_t to,
                   const AttendSpace& space) {
  const int d = call.head_dim;
  for (int64_t p = from / V::kWidth * V::kWidth; p < to; p += V::kWidth) {
    for (int i = 0; i < d; i += V::kWidth) {
      const int count = d - i < V::kWidth ? d - i : V::kWidth;
      typename V::F rows[V::kWidth];
      ASSAY_UNROLL for (int j = 0; j < V::kWidth; ++j) {
        const bool exists = p + j >= from && p + j < to;
        rows[j] =
            exists ? load_cache<V>(call.keys, call.type, (base + p + j) * d + i, count) : V::zero();
      }
      V::transpose(rows);
      ASSAY_UNROLL for (int j = 0; j < V::kWidth; ++j) {
        V::store(space.keys + (i + j) * kPositions + p, rows[j]);
      }
    }
  }
  for (int64_t p = from; p < to; ++p) {
    for (int i = 0; i < d; i += V::kWidth) {
      const int count = d - i < V::kWidth ? d - i : V::kWidth;
      V::store(space.values + p * space.padded + i,
               load_cache<V>(call.values, call.type, (base + p) * d + i, count));
    }
  }
}

/// kWidth dot products (one key position per lane) of Q queries.
template <class V, int Q>
struct Dots {
  typename V::F v[Q];
};

/// One lane of the lane sum: elements l, l + 32, … below n.
template <class V, int Q>
ASSAY_INLINE Dots<V, Q> lane_of_dot(const float* const* q, const float* keys, int l, int n) {
  Dots<V, Q> acc;
  ASSAY_UNROLL for (int t = 0; t < Q; ++t) acc.v[t] = V::zero();
  for (int i = l; i < n; i += kLanes) {
    const typename V::F k = V::load(keys + i * kPositions);
    ASSAY_UNROLL for (int t = 0; t < Q; ++t) acc.v[t] = V::fma(V::set(q[t][i]), k, acc.v[t]);
  }
  return acc;
}

/// Folds 16, 8, … kFold of the lanes that meet in lane l: acc[l] + acc[l + kFold] at each level.
template <class V, int Q, int kFold>
ASSAY_INLINE Dots<V, Q> folded_dot(const float* const* q, const float* keys, int l, int n) {
  if constexpr (kFold == kLanes) {
    return lane_of_dot<V, Q>(q, keys, l, n);
  } else {
    Dots<V, Q> a = folded_dot<V, Q, kFold * 2>(q, keys, l, n);
    const Dots<V, Q> b = folded_dot<V, Q, kFold * 2>(q, keys, l + kFold, n);
    ASSAY_UNROLL for (int t = 0; t < Q; ++t) a.v[t] = V::add(a.v[t], b.v[t]);
    return a;
  }
}

/// Lane sums over head dimensions [first, first + 256) of positions p, p + 1, ….
template <class V, int Q>
ASSAY_INLINE Dots<V, Q> block_dot(const AttendCall& call, const float* const* q, int first,
                                  int64_t p, const AttendSpace& space) {
  const int left = call.head_dim - first;
  const float* part[Q];
  ASSAY_UNROLL for (int t = 0; t < Q; ++t) part[t] = q[t] + first;
  return folded_dot<V, Q, 1>(part, space.keys + first * kPositions + p, 0,
                             left < kLaneBlock ? left : kLaneBlock);
}

/// scores (Q, 128) of positions [from, to): lane dots times scale.
template <class V, int Q>
void score_block(const AttendCall& call, const float* const* q, int64_t from, int64_t to,
                 const AttendSpace& space) {
  for (int64_t p = from / V::kWidth * V::kWidth; p < to; p += V::kWidth) {
    Dots<V, Q> total = block_dot<V, Q>(call, q, 0, p, space);
    for (int first = kLaneBlock; first < call.head_dim; first += kLaneBlock) {
      const Dots<V, Q> block = block_dot<V, Q>(call, q, first, p, space);
      ASSAY_UNROLL for (int t = 0; t < Q; ++t) total.v[t] = V::add(total.v[t], block.v[t]);
    }
    ASSAY_UNROLL for (int t = 0; t < Q; ++t) {
      V::store(space.scores + t * kPositions + p, V::mul(total.v[t], V::set(call.scale)));
    }
  }
}

/// Turns scores [from, to) into weights exp(score − m), +0 elsewhere. Returns false if a score is
/// not finite.
template <class V>
bool soften(float* scores, int64_t from, int64_t to, float* m, float* l) {
  using F = typename V::F;
  F largest = V::set(scores[from]);
  typename V::I magnitude = V::set_int(0);
  for (int64_t p = from; p < to; p += V::kWidth) {
    const typename V::M mask =
        V::first_n(static_cast<int>(to - p < V::kWidth ? to - p : V::kWidth));
    const F s = V::load_first(scores + p, mask);
    magnitude = V::max_int(magnitude, V::and_bits(V::bits(s), V::set_int(kMagnitude)));
    largest = V::select(mask, V::max(largest, s), largest);
  }
  if (V::largest_int(magnitude) >= kInfinityBits) return false;
  *m = V::largest(largest);
  for (int64_t p = 0; p < from; ++p) scores[p] = 0.0f;
  for (int64_t p = to; p < kPositions; ++p) scores[p] = 0.0f;
  for (int64_t p = from; p < to; p += V::kWidth) {
    const typename V::M mask =
        V::first_n(static_cast<int>(to - p < V::kWidth ? to - p : V::kWidth));
    const F s = V::load_first(scores + p, mask);
    V::store_first(scores + p, mask, exp_lanes<V>(V::sub(s, V::set(*m))));
  }
  *l = lane_sum_of<V>(scores, kPositions);
  return true;
}

/// partial (Q, padded) += Σ over ascending positions [from, to) of weight·value, each a chain.
template <class V, int Q>
void add_values(int64_t from, int64_t to, const float* weights, float* partial,
                const AttendSpace& space) {
  constexpr int kVectors = V::kValueVectors;
  int64_t i = 0;
  for (; i + kVectors * V::kWidth <= space.padded; i += kVectors * V::kWidth) {
    typename V::F acc[Q][kVectors];
    ASSAY_UNROLL for (int t = 0; t < Q; ++t) {
      ASSAY_UNROLL for (int j = 0; j < kVectors; ++j) {
        acc[t][j] = V::load(partial + t * space.padded + i + j * V::kWidth);
      }
    }
    for (int64_t p = from; p < to; ++p) {
      const float* value = space.values + p * space.padded + i;
      typename V::F v[kVectors];
      ASSAY_UNROLL for (int j = 0; j < kVectors; ++j) v[j] = V::load(value + j * V::kWidth);
      ASSAY_UNROLL for (int t = 0; t < Q; ++t) {
        const typename V::F w = V::set(weights[t * kPositions + p]);
        ASSAY_UNROLL for (int j = 0; j < kVectors; ++j) acc[t][j] = V::fma(w, v[j], acc[t][j]);
      }
    }
    ASSAY_UNROLL for (int t = 0; t < Q; ++t) {
      ASSAY_UNROLL for (int j = 0; j < kVectors; ++j) {
        V::store(partial + t * space.padded + i + j * V::kWidth, acc[t][j]);
      }
    }
  }
  for (; i < space.padded; i += V::kWidth) {
    for (int t = 0; t < Q; ++t) {
      float* out = partial + t * space.padded + i;
      typename V::F acc = V::load(out);
      for (int64_t p = from; p < to; ++p) {
        acc = V::fma(V::set(weights[t * kPositions + p]),
                     V::load(space.values + p * space.padded + i), acc);
      }
      V::store(out, acc);
    }
  }
}

/// Merges a segment's sums into a query's running ones.
template <class V>
void merge_segment(bool is_first, float m, float l, const float* partial, int64_t query,
                   const AttendSpace& space) {
  float* o = space.o(query);
  if (is_first) {
    for (int64_t i = 0; i < space.padded; i += V::kWidth) V::store(o + i, V::load(partial + i));
    space.m(query) = m;
    space.l(query) = l;
    return;
  }
  const float old = space.m(query);
  const float top = m > old ? m : old;
  const typename V::F a = exp_lanes<V>(V::set(old - top));
  const typename V::F b = exp_lanes<V>(V::set(m - top));
  for (int64_t i = 0; i < space.padded; i += V::kWidth) {
    V::store(o + i, V::add(V::mul(V::load(o + i), a), V::mul(V::load(partial + i), b)));
  }
  const typename V::F sum = V::add(V::mul(V::set(space.l(query)), a), V::mul(V::set(l), b));
  space.l(query) = V::first(sum);
  space.m(query) = top;
}

/// Q queries, one segment. Returns −1, or the index (0 … Q − 1) of a query with a bad score.
template <class V, int Q>
int64_t attend_block(const AttendCall& call, int64_t query, int64_t base,
                     const AttendSpace& space) {
  int64_t from[Q], to[Q];
  int64_t lowest = kPositions, highest = 0;   // of any
  int64_t all_from = 0, all_to = kPositions;  // of all
  for (int t = 0; t < Q; ++t) {
    const int64_t first = call.first[query + t] - base;
    const int64_t last = call.last[query + t] - base;
    from[t] = first > 0 ? first : 0;
    to[t] = last + 1 < kPositions ? last + 1 : kPositions;
    if (to[t] <= from[t]) to[t] = from[t] = 0;  // sees nothing here
    if (to[t] > from[t]) {
      lowest = from[t] < lowest ? from[t] : lowest;
      highest = to[t] > highest ? to[t] : highest;
    }
    all_from = from[t] > all_from ? from[t] : all_from;
    all_to = to[t] < all_to ? to[t] : all_to;
  }
  if (highest <= lowest) return -1;
  score_block<V, Q>(call, call.q + query, lowest, highest, space);
  float m[Q] = {}, l[Q] = {};
  for (int t = 0; t < Q; ++t) {
    if (to[t] > from[t] &&
        !soften<V>(space.scores + t * kPositions, from[t], to[t], &m[t], &l[t])) {
      return t;
    }
  }
  for (int64_t i = 0; i < Q * space.padded; i += V::kWidth) V::store(space.partial + i, V::zero());
  const bool together = all_to > all_from;
  const auto alone = [&](int t, int64_t begin, int64_t end) {
    if (end > begin) {
      add_values<V, 1>(begin, end, space.scores + t * kPositions, space.partial + t * space.padded,
                       space);
    }
  };
  for (int t = 0; t < Q; ++t) alone(t, from[t], together ? all_from : to[t]);
  if (together) {
    add_values<V, Q>(all_from, all_to, space.scores, space.partial, space);
    for (int t = 0; t < Q; ++t) alone(t, all_to, to[t]);
  }
  for (int t = 0; t < Q; ++t) {
    if (to[t] <= from[t]) continue;
    const bool is_first = call.first[query + t] >= base;
    merge_segment<V>(is_first, m[t], l[t], space.partial + t * space.padded, query + t, space);
  }
  return -1;
}

template <class V>
int64_t attend_of(const AttendCall& call) {
  constexpr int kQueries = V::kQueries;
  static_assert(kQueries <= AttendSpace::kBlock);
  const AttendSpace space(call.head_dim, call.workspace);
  int64_t lowest = call.first[0];
  int64_t highest = call.last[0];
  for (int64_t i = 1; i < call.n_queries; ++i) {
    lowest = call.first[i] < lowest ? call.first[i] : lowest;
    highest = call.last[i] > highest ? call.last[i] : highest;
  }
  // Columns of values that head_dim does not have stay zero.
  const int64_t n_values = call.head_dim % 16 != 0 ? kPositions * space.padded : 0;
  for (int64_t i = 0; i < n_values; i += V::kWidth) {
    V::store(space.values + i, V::zero());
  }
  int64_t bad = call.n_queries;
  for (int64_t base = lowest / kPositions * kPositions; base <= highest; base += kPositions) {
    const int64_t from = lowest > base ? lowest - base : 0;
    const int64_t to = highest - base + 1 < kPositions ? highest - base + 1 : kPositions;
    const int64_t first_row = call.ring > 0 ? base % call.ring : base;
    widen_segment<V>(call, first_row, from, to, space);
    int64_t query = 0;
    for (; query + kQueries <= call.n_queries; query += kQueries) {
      const int64_t at = attend_block<V, kQueries>(call, query, base, space);
      if (at >= 0 && query + at < bad) bad = query + at;
    }
    for (; query < call.n_queries; ++query) {
      const int64_t at = attend_block<V, 1>(call, query, base, space);
      if (at >= 0 && query < bad) bad = query;
    }
  }
  for (int64_t query = 0; query < call.n_queries && query < bad; ++query) {
    const float* o = space.o(query);
    const typename V::F l = V::set(space.l(query));
    for_each_vector<V>(call.head_dim, call.out[query], [=](int64_t i, typename V::M mask) {
      return V::div(V::load_first(o + i, mask), l);
    });
    if (!all_finite_of<V>(call.out[query], call.head_dim)) bad = query;
  }
  return bad < call.n_queries ? bad : -1;
}

template <class V>
constexpr VectorKernels kernels_of() {
  return {
      .lane_dot = lane_dot_of<V>,
      .lane_sum = lane_sum_of<V>,
      .lane_sum_exp = lane_sum_exp_of<V>,
      .largest = largest_of<V>,
      .exp = exp_of<V>,
      .swiglu = swiglu_of<V>,
      .geglu = geglu_of<V>,
      .softcap = softcap_of<V>,
      .silu = silu_of<V>,
      .sigmoid_gate = sigmoid_gate_of<V>,
      .scale = scale_of<V>,
      .multiply_add = multiply_add_of<V>,
      .add = add_of<V>,
      .scale_by_weight = scale_by_weight_of<V>,
      .rotate = rotate_of<V>,
      .all_finite = all_finite_of<V>,
      .round_to_cache = round_to_cache_of<V>,
      .quantize_row = quantize_row_of<V>,
      .attend = attend_of<V>,
  };
}

}  // namespace
}  // namespace assay
