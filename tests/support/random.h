#pragma once

#include <cstdint>
#include <vector>

#include "convert/core/tensor.h"

namespace assay::test {

/// Random numbers that depend on (seed, counter) alone and are the same with every compiler and
/// library: no state, no <random> distribution, no libm.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}

  /// 64 random bits of one position.
  uint64_t bits_at(uint64_t counter) const;
  /// In [-1, 1), a multiple of 2^-23.
  float uniform_at(uint64_t counter) const;
  /// Bell-shaped, mean 0, deviation 1, |x| < 3.5: the sum of four uniforms, scaled.
  float bell_at(uint64_t counter) const;
  /// In [0, n); 0 < n <= 2^32.
  uint64_t below_at(uint64_t n, uint64_t counter) const;

  /// The same in sequence.
  uint64_t bits() { return bits_at(counter_++); }
  float uniform() { return uniform_at(counter_++); }
  float bell() { return bell_at(counter_++); }
  uint64_t below(uint64_t n) { return below_at(n, counter_++); }
  /// In [low, high], at most 2^32 values.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  /// In [0, 1), a multiple of 2^-24.
  float unit() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  /// n values in [-scale, scale).
  std::vector<float> reals(size_t n, float scale) {
    std::vector<float> values(n);
    for (float& v : values) v = uniform() * scale;
    return values;
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

std::vector<float> random_floats(size_t n, uint64_t seed);  // bell-shaped
/// F32, F16, BF16: bell-shaped; integers: uniform over all values; BOOL: 0 or 1.
Tensor random_tensor(DType dtype, Shape shape, uint64_t seed);

}  // namespace assay::test
