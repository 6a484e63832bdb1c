#include <bit>
#include <cmath>
#include <cstring>

#include "convert/core/math64.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "runtime/ops/rope.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

constexpr int64_t kHashedPositions = 4096;
constexpr double kTwoPi = 0x1.921fb54442d18p+2;

/// Inverse frequencies of plain RoPE: 1 / θ^(2i/r).
std::vector<float> plain_inv_freq(const RopeSpec& spec) {
  const double log_theta = log64(spec.theta);
  std::vector<float> inv(static_cast<size_t>(spec.rotary_dims / 2));
  for (size_t i = 0; i < inv.size(); ++i) {
    const float e = static_cast<float>(2 * i) / static_cast<float>(spec.rotary_dims);
    const auto power = static_cast<float>(exp64(static_cast<double>(e) * log_theta));
    inv[i] = 1.0f / power;
  }
  return inv;
}

void scale_llama3(const RopeSpec& spec, std::vector<float>& inv) {
  const auto factor = static_cast<float>(spec.factor);
  const auto low = static_cast<float>(spec.low_freq_factor);
  const auto high = static_cast<float>(spec.high_freq_factor);
  const auto context = static_cast<float>(spec.original_context);
  for (float& f : inv) {
    const float wavelength = static_cast<float>(kTwoPi) / f;
    if (wavelength > context / low) {
      f = f / factor;
    } else if (!(wavelength < context / high)) {
      const float s = (context / wavelength - low) / (high - low);
      f = ((1.0f - s) * f) / factor + s * f;
    }
  }
}

/// The (real) pair index whose wavelength turns `n` times within the original context.
double yarn_dimension(const RopeSpec& spec, double n) {
  const double ratio = static_cast<double>(spec.original_context) / (kTwoPi * n);
  return (spec.rotary_dims * log64(ratio)) / (2.0 * log64(spec.theta));
}

void scale_yarn(const RopeSpec& spec, std::vector<float>& inv) {
  // The bounds are constants of the config: fp64, then rounded to fp32 once.
  double from = yarn_dimension(spec, spec.beta_fast);
  double to = yarn_dimension(spec, spec.beta_slow);
  if (spec.truncate) {
    from = std::floor(from);
    to = std::ceil(to);
  }
  from = std::max(from, 0.0);
  to = std::min(to, static_cast<double>(spec.rotary_dims - 1));
  if (from == to) to += 0.001;
  const auto low = static_cast<float>(from);
  const auto high = static_cast<float>(to);
  const auto factor = static_cast<float>(spec.factor);
  for (size_t i = 0; i < inv.size(); ++i) {
    const float ramp = std::min(1.0f, std::max(0.0f, (static_cast<float>(i) - low) / (high - low)));
    inv[i] = (inv[i] / factor) * ramp + inv[i] * (1.0f - ramp);
  }
}

std::vector<float> scaled_inv_freq(const RopeSpec& spec) {
  std::vector<float> inv = plain_inv_freq(spec);
  switch (spec.kind) {
    case RopeSpec::Kind::kDefault:
      break;
    case RopeSpec::Kind::kLinear:
      for (float& f : inv) f = f / static_cast<float>(spec.factor);
      break;
    case RopeSpec::Kind::kLlama3:
      scale_llama3(spec, inv);
      break;
    case RopeSpec::Kind::kYarn:
      scale_yarn(spec, inv);
      break;
    case RopeSpec::Kind::kProportional:
      for (size_t i = 0; i < inv.size(); ++i) {
        const bool rotated = i < static_cast<size_t>(spec.n_rotated_pairs);
        inv[i] = rotated ? inv[i] / static_cast<float>(spec.factor) : 0.0f;
      }
      break;
  }
  return inv;
}

static_assert(std::endian::native == std::endian::little, "hashes are of little-endian bytes");

std::span<const std::byte> bytes_of(std::span<const float> values) { return std::as_bytes(values); }

}  // namespace

RopeTable make_rope_table(const RopeSpec& spec, int64_t n_positions) {
  RopeTable table;
  table.rotary_dims = spec.rotary_dims;
  table.n_positions = n_positions;
  table.inv_freq = scaled_inv_freq(spec);
  const size_t pairs = table.inv_freq.size();
  table.cos.resize(static_cast<size_t>(n_positions) * pairs);
  table.sin.resize(static_cast<size_t>(n_positions) * pairs);
  const bool scaled = spec.kind == RopeSpec::Kind::kYarn;
  const auto attention_factor = static_cast<float>(spec.attention_factor);
  constexpr int64_t kGrain = 256;  // positions; about 0.1 ms
  parallel_for(n_positions, kGrain, [&](int64_t begin, int64_t end) {
    for (auto at = static_cast<size_t>(begin) * pairs; at < static_cast<size_t>(end) * pairs;
         ++at) {
      const size_t position = at / pairs;
      const float angle = static_cast<float>(position) * table.inv_freq[at % pairs];
      auto c = static_cast<float>(cos64(angle));
      auto s = static_cast<float>(sin64(angle));
      if (scaled) {
        c = c * attention_factor;
        s = s * attention_factor;
      }
      table.cos[at] = c;
      table.sin[at] = s;
    }
  });
  return table;
}

std::string rope_inv_freq_sha256(const RopeSpec& spec) {
  return sha256_hex(bytes_of(scaled_inv_freq(spec)));
}

std::string rope_table_sha256(const RopeSpec& spec) {
  const RopeTable table = make_rope_table(spec, kHashedPositions);
  const size_t pairs = table.inv_freq.size();
  Sha256 hash;
  for (size_t position = 0; position < kHashedPositions; ++position) {
    hash.update(bytes_of(std::span(table.cos).subspan(position * pairs, pairs)));
    hash.update(bytes_of(std::span(table.sin).subspan(position * pairs, pairs)));
  }
  return hash.finish();
}

void rope_apply(const RopeTable& table, int64_t position, float* x, int n_heads, int head_dim) {
  const VectorKernels& kernels = vector_kernels();
  const int pairs = table.rotary_dims / 2;
  const float* cos = table.cos.data() + position * pairs;
  const float* sin = table.sin.data() + position * pairs;
  for (int head = 0; head < n_heads; ++head) {
    float* first = x + static_cast<int64_t>(head) * head_dim;
    kernels.rotate(first, first + pairs, cos, sin, pairs);
  }
}

}  // namespace assay
