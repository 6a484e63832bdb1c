#include "calibrate/gram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "calibrate/gram_kernels.h"
#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "runtime/ops/block_int16.h"

namespace assay {
namespace {

constexpr int64_t kMacro = 2;  // panels per side of the square of tiles that one task works on

constexpr uint32_t kLargestBits = std::bit_cast<uint32_t>(32639.0f * 0x1p100f);

int64_t first_tile(int64_t row_panel) { return row_panel * (row_panel + 1) / 2; }

void count_gram_tokens(int64_t more, int64_t& n_tokens) {
  if (more > kMaxGramTokens - n_tokens) {
    throw UnsupportedError("calibration: found more than " + std::to_string(kMaxGramTokens) +
                           " tokens, up to which sums are exact; use fewer windows");
  }
  n_tokens += more;
}

}  // namespace

void ChannelMaxima::add(const float* x, int64_t n_tokens) {
  const auto n = static_cast<int64_t>(maxima_.size());
  constexpr int64_t kColumns = 128;
  parallel_for(n, kColumns, [&](int64_t begin, int64_t end) {
    // A few rows at a time: their cache lines are read once for all columns of the task.
    constexpr int64_t kRows = 32;
    for (int64_t t = 0; t < n_tokens; t += kRows) {
      gram_kernels().maxima(x + t * n + begin, n, std::min(kRows, n_tokens - t), end - begin,
                            maxima_.data() + begin);
    }
  });
}

int64_t ChannelMaxima::find_fault() const {
  for (size_t c = 0; c < maxima_.size(); ++c) {
    if (maxima_[c] > kLargestBits) return static_cast<int64_t>(c);
  }
  return -1;
}

float ChannelMaxima::maximum(int64_t channel) const {
  return std::bit_cast<float>(maxima_[static_cast<size_t>(channel)]);
}

bool ChannelMaxima::all_zero() const {
  return std::all_of(maxima_.begin(), maxima_.end(), [](uint32_t bits) { return bits == 0; });
}

std::vector<int> ChannelMaxima::exponents() const {
  ASSAY_CHECK(find_fault() < 0);
  std::vector<int> out(maxima_.size());
  for (size_t c = 0; c < out.size(); ++c) {
    out[c] = block_int16_exponent(std::bit_cast<float>(maxima_[c]));
  }
  return out;
}

const GramKernels& gram_kernels() {
  return by_isa<gram_kernels_scalar, gram_kernels_avx2, gram_kernels_avx512>();
}

Gram::Gram(std::span<const int> exponents) : tokens_(exponents) {
  sums_.resize(static_cast<size_t>(first_tile(tokens_.n_panels()) * kGramTile));
}

void Gram::add(const float* x, int64_t n_tokens) {
  count_gram_tokens(n_tokens, n_tokens_);
  for (int64_t t = 0; t < n_tokens; t += PackedTokens::kMostTokens) {
    tokens_.pack(x + t * tokens_.n(), std::min(PackedTokens::kMostTokens, n_tokens - t));
    multiply();
  }
}

void Gram::multiply() {
  const int64_t n_panels = tokens_.n_panels();
  const int64_t n_macro = (n_panels + kMacro - 1) / kMacro;
  parallel_for(first_tile(n_macro), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = first_tile(n_macro) - 1 - i;
      auto row = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(task) + 1.0) - 1.0) / 2);
      while (first_tile(row) > task) --row;
      while (first_tile(row + 1) <= task) ++row;
      const int64_t column = task - first_tile(row);
      for (int64_t chunk = 0; chunk < tokens_.n_chunks(); ++chunk) {
        for (int64_t j = column * kMacro; j < std::min(n_panels, (column + 1) * kMacro); ++j) {
          const int64_t last = std::min(n_panels, (row + 1) * kMacro);
          for (int64_t r = std::max(row * kMacro, j); r < last; ++r) {
            PackedTokens::add_tile(tokens_, r, tokens_, j, chunk,
                                   sums_.data() + (first_tile(r) + j) * kGramTile);
          }
        }
      }
    }
  });
}

Hessian Gram::finish() {
  const int64_t n = tokens_.n();
  const std::vector<double> scales = tokens_.scales();
  tokens_ = PackedTokens({});
  Hessian out;
  out.n = n;
  out.n_tokens = n_tokens_;
  out.values.resize(static_cast<size_t>(n * n));
  parallel_for(n, 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t r = std::max(i, j);
        const int64_t c = std::min(i, j);
        const int64_t tile = first_tile(r / kGramPanel) + c / kGramPanel;
        const double a = sums_[static_cast<size_t>(tile * kGramTile + r % kGramPanel * kGramPanel +
                                                   c % kGramPanel)];
        out.values[static_cast<size_t>(i * n + j)] =
            a * scales[static_cast<size_t>(i)] * scales[static_cast<size_t>(j)];
      }
    }
  });
  sums_ = {};
  return out;
}

CrossGram::CrossGram(std::span<const int> row_exponents, const PackedTokens& columns)
    : rows_(row_exponents), columns_(columns) {
  sums_.resize(static_cast<size_t>(rows_.n_panels() * columns_.n_panels() * kGramTile));
}

void CrossGram::add(const float* x) {
  count_gram_tokens(columns_.n_tokens(), n_tokens_);
  rows_.pack(x, columns_.n_tokens());
  multiply();
}

void CrossGram::multiply() {
  const int64_t row_macros = (rows_.n_panels() + kMacro - 1) / kMacro;
  const int64_t column_macros = (columns_.n_panels() + kMacro - 1) / kMacro;
  parallel_for(row_macros * column_macros, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / column_macros * kMacro;
      const int64_t column = task % column_macros * kMacro;
      for (int64_t chunk = 0; chunk < rows_.n_chunks(); ++chunk) {
        for (int64_t r = row; r < std::min(rows_.n_panels(), row + kMacro); ++r) {
          for (int64_t c = column; c < std::min(columns_.n_panels(), column + kMacro); ++c) {
            PackedTokens::add_tile(rows_, r, columns_, c, chunk,
                                   sums_.data() + (r * columns_.n_panels() + c) * kGramTile);
          }
        }
      }
    }
  });
}

CrossProduct CrossGram::finish() {
  CrossProduct out;
  out.n_rows = rows_.n();
  out.n_columns = columns_.n();
  const int64_t column_panels = columns_.n_panels();
  const std::vector<double> row_scales = rows_.scales();
  const std::vector<double>& column_scales = columns_.scales();
  rows_ = PackedTokens({});
  out.values.resize(static_cast<size_t>(out.n_rows * out.n_columns));
  parallel_for(out.n_rows, 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < out.n_columns; ++j) {
        const int64_t tile = i / kGramPanel * column_panels + j / kGramPanel;
        const double a = sums_[static_cast<size_t>(tile * kGramTile + i % kGramPanel * kGramPanel +
                                                   j % kGramPanel)];
        out.values[static_cast<size_t>(i * out.n_columns + j)] =
            a * row_scales[static_cast<size_t>(i)] * column_scales[static_cast<size_t>(j)];
      }
    }
  });
  sums_ = {};
  return out;
}

uint64_t products_peak_bytes(int64_t n, std::span<const int64_t> cross_rows) {
  const auto panels = [](int64_t channels) {
    return static_cast<uint64_t>((channels + kGramPanel - 1) / kGramPanel);
  };
  const auto values = [n](int64_t rows) {
    return static_cast<uint64_t>(rows) * static_cast<uint64_t>(n) * sizeof(double);
  };
  constexpr uint64_t kTileBytes = kGramTile * sizeof(double);
  uint64_t held = PackedTokens::bytes(n) + panels(n) * (panels(n) + 1) / 2 * kTileBytes;
  for (const int64_t rows : cross_rows) {
    held += PackedTokens::bytes(rows) + panels(rows) * panels(n) * kTileBytes;
  }
  uint64_t peak = held;
  for (const int64_t rows : cross_rows) {
    held += values(rows) - PackedTokens::bytes(rows);
    peak = std::max(peak, held);
    held -= panels(rows) * panels(n) * kTileBytes;
  }
  return std::max(peak, held - PackedTokens::bytes(n) + values(n));
}

}  // namespace assay
