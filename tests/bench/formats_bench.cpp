// Speed of the weight formats on one thread: decoding rows to fp32, in GB/s of fp32 written, and
// encoding, in millions of weights a second. Checks first that decoding what was encoded and
// encoding that again gives values near the first. One JSON line a format.
//   formats_bench [columns=4096] [rounds=5]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "tests/support/random.h"

namespace assay {
namespace {

constexpr int64_t kRows = 64;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The shortest of `rounds` runs of at least 20 ms each, for one run of `work`.
template <class Work>
double seconds_of(int rounds, const Work& work) {
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const double begin = cpu_seconds();
    int n = 0;
    do {
      work();
      ++n;
    } while (cpu_seconds() - begin < 0.02);
    best = std::min(best, (cpu_seconds() - begin) / n);
  }
  return best;
}

void measure(const WeightFormat& format, int64_t columns, int rounds) {
  test::Random random(1);
  std::vector<float> values(static_cast<size_t>(kRows * columns)), decoded(values.size());
  for (float& value : values) {
    value = static_cast<float>(static_cast<int64_t>(random.below(2001)) - 1000) * 1e-4f;
  }
  const auto row_bytes = static_cast<size_t>(format.row_bytes(columns));
  std::vector<std::byte> data(static_cast<size_t>(kRows) * row_bytes);
  const std::vector<float> importance(static_cast<size_t>(columns), 1.0f);
  const auto row_of = [&](auto& all, int64_t row, size_t n) {
    return std::span(all).subspan(static_cast<size_t>(row) * n, n);
  };
  const auto encode = [&](int64_t row) {
    format.encode_row(
        row_of(values, row, static_cast<size_t>(columns)),
        format.needs_importance() ? std::span<const float>(importance) : std::span<const float>(),
        row_of(data, row, row_bytes));
  };
  const double begin = cpu_seconds();
  for (int64_t row = 0; row < kRows; ++row) encode(row);
  const double encode_s = cpu_seconds() - begin;
  const WeightView view{.format = &format,
                        .rows = kRows,
                        .columns = columns,
                        .group_size = format.fixed_group(),
                        .data = data};
  const double decode_s = seconds_of(rounds, [&] {
    for (int64_t row = 0; row < kRows; ++row) {
      format.decode_row(view, row, row_of(decoded, row, static_cast<size_t>(columns)));
    }
  });
  double error = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(values[i]), 2);
    size += std::pow(static_cast<double>(values[i]), 2);
  }
  if (!(error < size)) throw NumericError(std::string(format.name()) + ": decodes to other values");
  fmt::print(
      "{{\"format\": \"{}\", \"decode_gb_per_s\": {:.2f}, \"encode_million_per_s\": {:.1f}, "
      "\"relative_error\": {:.4f}}}\n",
      format.name(), 4e-9 * static_cast<double>(values.size()) / decode_s,
      1e-6 * static_cast<double>(values.size()) / encode_s, std::sqrt(error / size));
  std::fflush(stdout);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  const int64_t columns = argc > 1 ? std::atoll(argv[1]) : 4096;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  try {
    for (const assay::WeightFormat* format : assay::all_formats()) {
      if (format->gguf_type() && format->can_encode()) assay::measure(*format, columns, rounds);
    }
  } catch (const assay::Error& error) {
    fmt::print(stderr, "formats_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
