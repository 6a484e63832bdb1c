#include <fmt/format.h>

#include <array>
#include <cstring>

#include "convert/checkpoint/quantized_layout.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/families/config_reader.h"
#include "convert/formats/packed_integer.h"

namespace assay {
namespace {

constexpr int kBits = 4;
constexpr int64_t kPerWord = 8;
/// Nibble i of a word holds output kOrder[i] of its eight.
constexpr std::array<int, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};

uint32_t word_at(const SafetensorsEntry& entry, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, entry.view.bytes.data() + 4 * index, 4);
  return word;
}

/// qweight (columns, rows/8) words packed along the outputs, qzeros (n_groups, rows/8) likewise
/// with zero points as they are, scales (n_groups, rows).
class AwqMatrix final : public TensorOnDisk {
 public:
  AwqMatrix(int64_t rows, int64_t columns, int64_t group_size, const SafetensorsEntry& qweight,
            const SafetensorsEntry& qzeros, const SafetensorsEntry& scales)
      : rows_(rows), columns_(columns), qweight_(qweight), qzeros_(qzeros), scales_(scales) {
    stored_.format = &integer_format(kBits, false);
    stored_.group_size = group_size;
    stored_.scale_dtype = scales.view.dtype;
    for (const SafetensorsEntry* part : {&qweight, &qzeros, &scales}) {
      stored_.bytes += part->view.bytes.size();
      stored_.parts.push_back(part->name);
    }
  }

  CheckpointMatrix load() const override {
    const int64_t n_groups = columns_ / stored_.group_size;
    const size_t code_bytes = qweight_.view.bytes.size();
    const size_t scale_size = dtype_bytes(scales_.view.dtype);
    const auto n_scales = static_cast<size_t>(rows_ * n_groups);
    auto storage =
        std::make_shared<std::vector<std::byte>>(code_bytes + n_scales * scale_size + n_scales);
    std::byte* const codes = storage->data();
    std::byte* const scales = codes + code_bytes;
    auto* const zeros = reinterpret_cast<uint8_t*>(scales + n_scales * scale_size);
    parallel_for_anywhere(rows_ / kPerWord, kWordsTogether, [&](int64_t begin, int64_t end) {
      unpack_codes(begin, end, codes);
      for (int64_t g = 0; g < n_groups; ++g) {
        for (int64_t row = begin * kPerWord; row < end * kPerWord; ++row) {
          std::memcpy(scales + static_cast<size_t>(row * n_groups + g) * scale_size,
                      scales_.view.bytes.data() + static_cast<size_t>(g * rows_ + row) * scale_size,
                      scale_size);
        }
        for (int64_t w = begin; w < end; ++w) {
          const uint32_t word = word_at(qzeros_, g * (rows_ / kPerWord) + w);
          for (size_t i = 0; i < kOrder.size(); ++i) {
            const int64_t row = w * kPerWord + kOrder[i];
            zeros[row * n_groups + g] = static_cast<uint8_t>((word >> (kBits * i)) & 15u);
          }
        }
      }
    });
    CheckpointMatrix matrix;
    matrix.view.format = stored_.format;
    matrix.view.rows = rows_;
    matrix.view.columns = columns_;
    matrix.view.group_size = stored_.group_size;
    matrix.view.data = {codes, code_bytes};
    matrix.view.scales = {scales_.view.dtype, {rows_, n_groups}, {scales, n_scales * scale_size}};
    matrix.view.zero_points = {zeros, n_scales};
    matrix.storage = std::move(storage);
    return matrix;
  }

 private:
  /// A cache line of codes of one column.
  static constexpr int64_t kWordsTogether = 16;

  /// Words [begin, end) of each column, into rows of codes packed along the columns, as
  /// PackedIntegerFormat reads them.
  void unpack_codes(int64_t begin, int64_t end, std::byte* out) const {
    const int64_t n_words = rows_ / kPerWord;
    const int64_t row_bytes = columns_ / 2;
    for (int64_t k = 0; k < columns_; k += 2) {
      for (int64_t w = begin; w < end; ++w) {
        const uint32_t even = word_at(qweight_, k * n_words + w);
        const uint32_t odd = word_at(qweight_, (k + 1) * n_words + w);
        for (size_t i = 0; i < kOrder.size(); ++i) {
          const uint32_t both = ((even >> (kBits * i)) & 15u) | ((odd >> (kBits * i)) & 15u)
                                                                    << kBits;
          out[(w * kPerWord + kOrder[i]) * row_bytes + k / 2] = static_cast<std::byte>(both);
        }
      }
    }
  }

  int64_t rows_;
  int64_t columns_;
  const SafetensorsEntry& qweight_;
  const SafetensorsEntry& qzeros_;
  const SafetensorsEntry& scales_;
};

class AwqLayout final : public QuantizedLayout {
 public:
  explicit AwqLayout(int64_t group_size) : group_size_(group_size) {}

  /// A module with `.qweight` is quantized, whatever modules_to_not_convert says.
  std::unique_ptr<const TensorOnDisk> open(const std::string& module, int64_t rows, int64_t columns,
                                           TensorLedger& ledger) const override {
    if (!ledger.has(module + ".qweight")) return nullptr;
    const int64_t group_size = check_group_size(module, kBits, group_size_, columns);
    const int64_t n_groups = columns / group_size;
    if (rows % kPerWord != 0) {
      throw UnsupportedError(
          fmt::format("\"{}\": codes of {} outputs do not fill 32-bit words", module, rows));
    }
    const SafetensorsEntry* qweight =
        ledger.require(module + ".qweight", {columns, rows / kPerWord}, {DType::kI32});
    const SafetensorsEntry* qzeros =
        ledger.require(module + ".qzeros", {n_groups, rows / kPerWord}, {DType::kI32});
    const SafetensorsEntry* scales = ledger.require(module + ".scales", {n_groups, rows},
                                                    {DType::kF16, DType::kBF16, DType::kF32});
    if (qweight == nullptr || qzeros == nullptr || scales == nullptr) return nullptr;
    return std::make_unique<AwqMatrix>(rows, columns, group_size, *qweight, *qzeros, *scales);
  }

 private:
  int64_t group_size_;
};

/// Layout gemm, 4 bits with zero points. Source: AutoAWQ, WQLinear_GEMM.
std::unique_ptr<QuantizedLayout> read_config(const Json& json, const std::string& source) {
  const ConfigReader config(json, source);
  const std::string bits_key = config.has("bits") ? "bits" : "w_bit";
  const std::string group_key = config.has("group_size") ? "group_size" : "q_group_size";
  if (const int64_t bits = config.integer(bits_key, 1, 32); bits != kBits) {
    throw UnsupportedError(fmt::format("{}: {} bits are not supported; 4 are", source, bits));
  }
  const int64_t group_size = config.integer(group_key, -1, int64_t{1} << 30);
  if (group_size == 0) config.fail(group_key, "-1 (whole row) or a size");
  if (!config.boolean_or("zero_point", true)) {
    throw UnsupportedError(source + ": AWQ without zero points is not supported");
  }
  std::string version = config.text_or("version", "gemm");
  for (char& c : version) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (version != "gemm") {
    throw UnsupportedError(
        fmt::format("{}: the AWQ layout \"{}\" is not supported; gemm is", source, version));
  }
  return std::make_unique<AwqLayout>(group_size);
}

constexpr Engine kEngines[] = {
    {.name = "vLLM", .by_marlin = true},
    {.name = "SGLang", .by_marlin = true},
    {.name = "transformers", .note = "with gptqmodel, in float16"},
    {.name = "GPTQModel"},
};

}  // namespace

extern const CheckpointFormat kAwqFormat;
const CheckpointFormat kAwqFormat = {
    .kind = CheckpointKind::kQuantizedFolder,
    .name = "AWQ",
    .engines = kEngines,
    .quant_method = "awq",
    .read = read_config,
};

}  // namespace assay
