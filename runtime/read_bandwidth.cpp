#include "runtime/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "convert/core/parallel.h"

namespace assay {
namespace {

/// Sum of n words in eight independent chains, so that loads and not additions set the pace.
uint64_t sum_words(const uint64_t* words, int64_t n) {
  constexpr int kChains = 8;
  uint64_t sums[kChains] = {};
  for (int64_t i = 0; i + kChains <= n; i += kChains) {
    for (int chain = 0; chain < kChains; ++chain) sums[chain] += words[i + chain];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double host_read_bandwidth(uint64_t bytes) {
  constexpr int kPasses = 5;
  constexpr int64_t kShare = int64_t{1} << 17;  // words: 1 MiB
  const auto n_words = static_cast<int64_t>(bytes / sizeof(uint64_t));
  std::vector<uint64_t> buffer(static_cast<size_t>(n_words), 1);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::atomic<uint64_t> total{0};  // keeps the loads from being left out
    const auto start = std::chrono::steady_clock::now();
    parallel_for(n_words, kShare, [&](int64_t begin, int64_t end) {
      total.fetch_add(sum_words(buffer.data() + begin, end - begin), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    buffer[0] = total.load();
    best = std::max(best, static_cast<double>(bytes) / seconds.count());
  }
  return best;
}

}  // namespace assay
