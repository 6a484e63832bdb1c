#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "runtime/math.h"
#include "runtime/ops/vector_kernels.h"

namespace assay {
namespace {

bool same(float actual, float expected) {
  if (expected != expected) return actual != actual;  // NaN
  return std::bit_cast<uint32_t>(actual) == std::bit_cast<uint32_t>(expected);
}

TEST(Exp, EqualsScalarOnEveryFloatAndIsa) {
  std::vector<const VectorKernels*> sets;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    force_isa(isa);
    sets.push_back(&vector_kernels());
  }
  force_isa(best_isa());
  if (sets.empty()) GTEST_SKIP() << "this CPU has only the scalar functions";
  constexpr int64_t kChunk = 1 << 16;
  std::vector<int64_t> differences(kChunk);  // per chunk of 2^16 floats

  parallel_for(kChunk, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> x(kChunk), y(kChunk), expected(kChunk);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      for (size_t i = 0; i < kChunk; ++i) {
        x[i] =
            std::bit_cast<float>(static_cast<uint32_t>(chunk * kChunk + static_cast<int64_t>(i)));
        expected[i] = exp_canonical(x[i]);
      }
      for (const VectorKernels* kernels : sets) {
        kernels->exp(x.data(), kChunk, y.data());
        for (size_t i = 0; i < kChunk; ++i) {
          differences[static_cast<size_t>(chunk)] += same(y[i], expected[i]) ? 0 : 1;
        }
      }
    }
  });

  for (int64_t chunk = 0; chunk < kChunk; ++chunk) {
    ASSERT_EQ(differences[static_cast<size_t>(chunk)], 0) << "floats with upper bits " << chunk;
  }
}

}  // namespace
}  // namespace assay
