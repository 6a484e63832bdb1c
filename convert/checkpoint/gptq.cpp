#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "convert/checkpoint/quantized_layout.h"
#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/families/config_reader.h"
#include "convert/formats/packed_integer.h"

namespace assay {
namespace {

struct GptqScheme {
  int bits = 4;
  bool symmetric = true;
  int64_t group_size = -1;      // −1: whole row
  bool zeros_minus_one = true;  // version 1 stores z − 1
};

/// (n_rows, n_columns) elements of `kBytes` → (n_columns, n_rows), in tiles that fit the cache.
template <size_t kBytes>
void transpose(const std::byte* in, int64_t n_rows, int64_t n_columns, std::byte* out) {
  constexpr int64_t kTile = 32;
  parallel_for_anywhere(n_columns, kTile, [&](int64_t begin, int64_t end) {
    for (int64_t r0 = 0; r0 < n_rows; r0 += kTile) {
      for (int64_t r = r0; r < std::min(n_rows, r0 + kTile); ++r) {
        for (int64_t c = begin; c < end; ++c) {
          std::memcpy(out + kBytes * static_cast<size_t>(c * n_rows + r),
                      in + kBytes * static_cast<size_t>(r * n_columns + c), kBytes);
        }
      }
    }
  });
}

/// qweight packs codes along the input, so a transposition of its words gives the rows that
/// PackedIntegerFormat reads.
class GptqMatrix final : public TensorOnDisk {
 public:
  GptqMatrix(const GptqScheme& scheme, int64_t rows, int64_t columns, int64_t group_size,
             const SafetensorsEntry& qweight, const SafetensorsEntry& qzeros,
             const SafetensorsEntry& scales)
      : scheme_(scheme),
        rows_(rows),
        columns_(columns),
        qweight_(qweight),
        qzeros_(qzeros),
        scales_(scales) {
    stored_.format = &integer_format(scheme.bits, scheme.symmetric);
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
    const size_t scale_bytes = scales_.view.bytes.size();
    const auto n_zeros = static_cast<size_t>(rows_ * n_groups);
    auto storage = std::make_shared<std::vector<std::byte>>(code_bytes + scale_bytes + n_zeros);
    std::byte* codes = storage->data();
    std::byte* scales = codes + code_bytes;
    auto* zeros = reinterpret_cast<uint8_t*>(scales + scale_bytes);
    transpose<4>(qweight_.view.bytes.data(), columns_ * scheme_.bits / 32, rows_, codes);
    if (scales_.view.dtype == DType::kF32) {
      transpose<4>(scales_.view.bytes.data(), n_groups, rows_, scales);
    } else {
      transpose<2>(scales_.view.bytes.data(), n_groups, rows_, scales);
    }
    unpack_zeros(n_groups, zeros);

    CheckpointMatrix matrix;
    matrix.view.format = stored_.format;
    matrix.view.rows = rows_;
    matrix.view.columns = columns_;
    matrix.view.group_size = stored_.group_size;
    matrix.view.data = {codes, code_bytes};
    matrix.view.scales = {scales_.view.dtype, {rows_, n_groups}, {scales, scale_bytes}};
    if (!scheme_.symmetric) matrix.view.zero_points = {zeros, n_zeros};
    matrix.storage = std::move(storage);
    return matrix;
  }

 private:
  /// (n_groups, rows·bits/32) words → (rows, n_groups) zero points; case B37.
  void unpack_zeros(int64_t n_groups, uint8_t* out) const {
    const int bits = scheme_.bits;
    const uint32_t mask = (1u << bits) - 1u;
    const uint32_t middle = 1u << (bits - 1);
    parallel_for_anywhere(rows_, 256, [&](int64_t begin, int64_t end) {
      for (int64_t g = 0; g < n_groups; ++g) {
        for (int64_t row = begin; row < end; ++row) {
          const std::byte* words = qzeros_.view.bytes.data() + 4 * (g * (rows_ * bits / 32));
          const uint32_t stored = packed_code(words, 1, bits, row);
          const uint32_t zero = stored + (scheme_.zeros_minus_one ? 1u : 0u);
          if (zero > mask) {
            throw FormatError(fmt::format(
                "\"{}\": stored zero point {} of output {}, group {} means {} in version 1 of the "
                "format, beyond {} bits; the writer let a zero point of 0 wrap",
                qzeros_.name, stored, row, g, zero, bits));
          }
          if (scheme_.symmetric && zero != middle) {
            throw FormatError(fmt::format(
                "\"{}\": zero point {} of output {}, group {}, but config.json says sym=true ({}); "
                "was the file written with another checkpoint_format (gptq, gptq_v2)?",
                qzeros_.name, zero, row, g, middle));
          }
          out[row * n_groups + g] = static_cast<uint8_t>(zero);
        }
      }
    });
  }

  GptqScheme scheme_;
  int64_t rows_;
  int64_t columns_;
  const SafetensorsEntry& qweight_;
  const SafetensorsEntry& qzeros_;
  const SafetensorsEntry& scales_;
};

class GptqLayout final : public QuantizedLayout {
 public:
  explicit GptqLayout(const GptqScheme& scheme) : scheme_(scheme) {}

  /// The format has no list of modules: one with `.qweight` is quantized.
  std::unique_ptr<const TensorOnDisk> open(const std::string& module, int64_t rows, int64_t columns,
                                           TensorLedger& ledger) const override {
    if (!ledger.has(module + ".qweight")) return nullptr;
    const int64_t group_size = check_group_size(module, scheme_.bits, scheme_.group_size, columns);
    const int64_t n_groups = columns / group_size;
    if (rows * scheme_.bits % 32 != 0) {
      throw UnsupportedError(
          fmt::format("\"{}\": zero points of {} outputs do not fill 32-bit words", module, rows));
    }
    const SafetensorsEntry* qweight =
        ledger.require(module + ".qweight", {columns * scheme_.bits / 32, rows}, {DType::kI32});
    const SafetensorsEntry* qzeros =
        ledger.require(module + ".qzeros", {n_groups, rows * scheme_.bits / 32}, {DType::kI32});
    const SafetensorsEntry* scales = ledger.require(module + ".scales", {n_groups, rows},
                                                    {DType::kF16, DType::kBF16, DType::kF32});
    std::vector<int32_t> group_of;
    if (const SafetensorsEntry* index = ledger.take(module + ".g_idx")) {
      group_of = read_group_index(*index, columns, group_size, ledger);
    }
    if (qweight == nullptr || qzeros == nullptr || scales == nullptr) return nullptr;
    return in_group_order(std::make_unique<GptqMatrix>(scheme_, rows, columns, group_size, *qweight,
                                                       *qzeros, *scales),
                          std::move(group_of));
  }

 private:
  GptqScheme scheme_;
};

/// Versions 1 and 2. Source: GPTQModel.
std::unique_ptr<QuantizedLayout> read_config(const Json& json, const std::string& source) {
  const ConfigReader config(json, source);
  GptqScheme scheme;
  scheme.bits = static_cast<int>(config.integer("bits", 1, 32));
  scheme.symmetric = config.boolean_or("sym", true);
  if (find_integer_format(scheme.bits, scheme.symmetric) == nullptr) {
    throw UnsupportedError(fmt::format("{}: {} bits are not supported; {} are", source, scheme.bits,
                                       integer_bits_text("and")));
  }
  scheme.group_size = config.integer("group_size", -1, int64_t{1} << 30);
  if (scheme.group_size == 0) config.fail("group_size", "-1 (whole row) or a size");
  const std::string format = config.text_or("checkpoint_format", config.text_or("format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    throw UnsupportedError(fmt::format(
        "{}: checkpoint_format \"{}\" is not supported; gptq and gptq_v2 are", source, format));
  }
  scheme.zeros_minus_one = format == "gptq";
  if (config.text_or("pack_dtype", "int32") != "int32") {
    throw UnsupportedError(source + ": pack_dtype other than int32 is not supported");
  }
  if (const Json* dynamic = config.find("dynamic"); dynamic != nullptr && dynamic->is_object()) {
    for (const auto& [pattern, rule] : dynamic->as_object()) {
      if (!pattern.starts_with("-:")) {
        throw UnsupportedError(fmt::format(
            "{}: \"dynamic\" rules per module (\"{}\") are not supported", source, pattern));
      }
    }
  }
  return std::make_unique<GptqLayout>(scheme);
}

constexpr Engine kEngines[] = {
    {.name = "vLLM",
     .by_marlin = true,
     .asymmetric_note = "asymmetric: only its old GPTQ kernel, in float16"},
    {.name = "SGLang", .by_marlin = true},
    {.name = "transformers", .note = "with gptqmodel"},
    {.name = "GPTQModel"},
};

}  // namespace

extern const CheckpointFormat kGptqFormat;
const CheckpointFormat kGptqFormat = {
    .kind = CheckpointKind::kQuantizedFolder,
    .name = "GPTQ",
    .engines = kEngines,
    .quant_method = "gptq",
    .side_file = "quantize_config.json",
    .read = read_config,
};

}  // namespace assay
