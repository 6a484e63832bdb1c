// Speed of linear() against what this machine can do at most: the read bandwidth of all threads for
// few tokens, the rate of 8-bit multiply-adds (VNNI) for many. Checks the result first.
//   linear_bench [formats=Q4_0,Q4_K] [shapes=2048x2048,512x2048] [tokens=1,512] [isa=avx512]
//                [threads=2] [rounds=7] [clock=wall|cpu]
// clock=cpu counts what the process ran, over the number of threads: for machines that others use.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "runtime/ops/linear.h"
#include "tests/support/random.h"

namespace assay {
namespace {

constexpr int64_t kColdBytes = 128 << 20;  // matrices that are cycled through: more than the caches
constexpr int64_t kCheckedRows = 33;

bool use_cpu_clock = false;

double now_seconds() {
  timespec time = {};
  clock_gettime(use_cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  const double seconds =
      static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  return use_cpu_clock ? seconds / n_threads() : seconds;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

struct Timing {
  double best = 0.0;
  double median = 0.0;
};

Timing measure(int rounds, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(seconds_of(work));
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

/// Bytes per second that all threads together read from memory.
double read_bandwidth() {
  const std::vector<uint64_t> data(size_t{256} << 17, 1);  // 256 MiB
  std::vector<uint64_t> sums(1024);
  const auto n = static_cast<int64_t>(data.size());
  const Timing time = measure(9, [&] {
    parallel_for(n, n / (n_threads() * 8), [&](int64_t begin, int64_t end) {
      uint64_t sum[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += data[static_cast<size_t>(i + j)];
      }
      sums[static_cast<size_t>(begin % 1024)] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4];
    });
  });
  return static_cast<double>(n) * 8.0 / time.best;
}

#if defined(__x86_64__)
constexpr int kVnniSteps = 16;  // independent chains in one turn of the loop below

/// The rate of u8 × s8 dot products; in assembly, so that no compiler adds moves.
void spin_vnni(int64_t turns) {
  asm volatile(
      "1:\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm0\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm1\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm2\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm3\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm4\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm5\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm6\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm7\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm8\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm9\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm10\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm11\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm12\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm13\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm14\n\t"
      "vpdpbusd %%zmm16, %%zmm16, %%zmm15\n\t"
      "dec %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#endif

/// 8-bit multiply-adds per second of all threads; 0 where there is no VNNI.
double vnni_peak() {
#if defined(__x86_64__)
  if (best_isa() != Isa::kAvx512) return 0.0;
  constexpr int64_t kTurns = 600'000;
  const int threads = n_threads();
  const Timing time =
      measure(7, [&] { parallel_for(threads, 1, [&](int64_t, int64_t) { spin_vnni(kTurns); }); });
  return static_cast<double>(kTurns * kVnniSteps * 64) * threads / time.best;
#else
  return 0.0;
#endif
}

/// Rows of random integers in the shape of a format; 61 different ones.
std::vector<IntegerRow> random_rows(const WeightFormat& format, int64_t columns, int64_t group) {
  test::Random random(1);
  std::vector<IntegerRow> rows(61);
  const auto n = static_cast<size_t>(columns);
  const auto n_groups = static_cast<size_t>((columns + group - 1) / group);
  const bool mins = format.fold() == Fold::kAffine ||
                    (format.fold() == Fold::kSuperBlock && format.code_zero() == 0);
  const auto fill = [&](auto& out, size_t size, int64_t low, int64_t high, float factor = 1.0f) {
    out.resize(size);
    for (auto& value : out) {
      value = static_cast<std::decay_t<decltype(value)>>(
          factor * static_cast<float>(random.integer(low, high)));
    }
  };
  for (IntegerRow& row : rows) {
    if (format.fold() == Fold::kFloat) {
      row.values = random.reals(n, 0.05f);
      continue;
    }
    fill(row.codes, n, 0, (1 << format.code_bits()) - 1);
    fill(row.scales, n_groups, 1, 255, 0x1p-16f);
    if (mins) fill(row.mins, n_groups, 1, 255, 0x1p-16f);
    const bool asymmetric = format.name().find("ASYM") != std::string_view::npos;
    const int64_t middle = 1 << (format.code_bits() - 1);
    if (format.fold() == Fold::kGroup) {
      fill(row.zeros, n_groups, asymmetric ? 0 : middle, middle);
    }
    if (format.fold() != Fold::kSuperBlock) continue;
    const auto n_subs = static_cast<size_t>(columns / format.sub_block());
    fill(row.sub_scales, n_subs, 0, 63);
    fill(row.sub_mins, n_subs, mins ? 1 : 0, mins ? 63 : 0);
  }
  return rows;
}

struct Shape {
  int64_t rows;
  int64_t columns;
};

BlockInt16 random_activations(int64_t n_tokens, int64_t columns) {
  const std::vector<float> x = test::Random(2).reals(static_cast<size_t>(n_tokens * columns), 2.0f);
  BlockInt16 block;
  quantize_block_int16(x.data(), n_tokens, columns, columns, block);
  return block;
}

class Case {
 public:
  Case(const WeightFormat& format, Shape shape)
      : format_(format),
        shape_(shape),
        group_(format.fixed_group() > 0 ? format.fixed_group() : 128),
        source_(random_rows(format, shape.columns, group_)) {
    while (matrices_.empty() || matrices_.size() * matrices_[0].bytes() < kColdBytes) {
      matrices_.push_back(PackedMatrix::pack(format, shape.rows, shape.columns, group_, reader()));
    }
  }

  void check(int64_t n_tokens) const {
    const int64_t n = std::min<int64_t>(n_tokens, 9);
    const int64_t rows = std::min(shape_.rows, kCheckedRows);
    const BlockInt16 x = random_activations(n, shape_.columns);
    std::vector<float> expected(static_cast<size_t>(n * rows));
    std::vector<float> actual(static_cast<size_t>(n * shape_.rows));
    linear_reference(format_, rows, shape_.columns, group_, reader(), x, {}, expected.data(), rows);
    linear(matrices_[0], x, {}, actual.data(), shape_.rows);
    for (int64_t t = 0; t < n; ++t) {
      if (std::memcmp(&expected[static_cast<size_t>(t * rows)],
                      &actual[static_cast<size_t>(t * shape_.rows)],
                      static_cast<size_t>(rows) * sizeof(float)) != 0) {
        throw std::runtime_error("wrong result, nothing measured");
      }
    }
  }

  Timing time(int64_t n_tokens, int rounds) const {
    const BlockInt16 x = random_activations(n_tokens, shape_.columns);
    std::vector<float> y(static_cast<size_t>(n_tokens * shape_.rows));
    size_t next = 0;
    const size_t per_round = n_tokens <= 8 ? matrices_.size() : 1;
    Timing total = measure(rounds, [&] {
      for (size_t i = 0; i < per_round; ++i) {
        linear(matrices_[next++ % matrices_.size()], x, {}, y.data(), shape_.rows);
      }
    });
    total.best /= static_cast<double>(per_round);
    total.median /= static_cast<double>(per_round);
    return total;
  }

  uint64_t bytes() const { return matrices_[0].bytes(); }

 private:
  std::function<void(int64_t, IntegerRow&)> reader() const {
    return [this](int64_t row, IntegerRow& out) {
      out = source_[static_cast<size_t>(row) % source_.size()];
    };
  }

  const WeightFormat& format_;
  Shape shape_;
  int64_t group_;
  std::vector<IntegerRow> source_;
  std::vector<PackedMatrix> matrices_;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void run_case(const WeightFormat& format, Shape shape, const std::vector<std::string>& tokens,
              int rounds, double bandwidth, double peak) {
  const Case c(format, shape);
  const double weights = static_cast<double>(shape.rows * shape.columns);
  const double planes = format.fold() == Fold::kFloat ? 4.0 : 2.0;
  for (const std::string& text : tokens) {
    const int64_t n = std::stoll(text);
    c.check(n);
    const Timing time = c.time(n, rounds);
    const double rate = static_cast<double>(c.bytes()) / time.median;
    const double macs = weights * static_cast<double>(n) / time.median;
    fmt::print("{:8} {:>6} x {:<5} {:5} tokens {:10.1f} us (best {:10.1f})  {:6.2f} GB/s {:4.0f} %",
               format.name(), shape.rows, shape.columns, n, time.median * 1e6, time.best * 1e6,
               rate * 1e-9, 100.0 * rate / bandwidth);
    fmt::print("  {:7.1f} GMAC/s", macs * 1e-9);
    if (peak > 0) fmt::print(" {:4.0f} % of VNNI", 100.0 * macs * planes / peak);
    fmt::print("  {:.3f} bits/weight\n", static_cast<double>(c.bytes()) * 8.0 / weights);
    std::fflush(stdout);
  }
}

int bench_main(int argc, char** argv) {
  std::map<std::string, std::string> options = {
      {"formats", "Q4_0,Q4_K,Q6_K,Q8_0,W4,W4_ASYM,BF16"},
      {"shapes", "2048x2048,512x2048,8192x2048,2048x8192"},
      {"tokens", "1,4,8,512"},
      {"isa", std::string(isa_name(best_isa()))},
      {"threads", "0"},
      {"clock", "wall"},
      {"rounds", "7"}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || options.count(argument.substr(0, equals)) == 0) {
      throw std::runtime_error("unknown argument: " + argument);
    }
    options[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  set_n_threads(std::stoi(options["threads"]));
  use_cpu_clock = options["clock"] == "cpu";
  force_isa(isa_from_name(options["isa"]).value());
  const double bandwidth = read_bandwidth();
  const double peak = vnni_peak();
  fmt::print("{} threads, {}: reads {:.2f} GB/s, VNNI {:.0f} GMAC/s of 8 bits\n", n_threads(),
             options["isa"], bandwidth * 1e-9, peak * 1e-9);
  for (const std::string& name : split(options["formats"])) {
    const WeightFormat* format = find_format(name);
    if (format == nullptr) throw std::runtime_error("unknown format: " + name);
    for (const std::string& shape : split(options["shapes"])) {
      const size_t x = shape.find('x');
      run_case(*format, {std::stoll(shape.substr(0, x)), std::stoll(shape.substr(x + 1))},
               split(options["tokens"]), std::stoi(options["rounds"]), bandwidth, peak);
    }
  }
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  try {
    return assay::bench_main(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "linear_bench: {}\n", e.what());
    return 1;
  }
}
