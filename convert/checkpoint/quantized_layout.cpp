#include "convert/checkpoint/quantized_layout.h"

#include <fmt/format.h>

#include <cstring>

#include "convert/checkpoint/act_order.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/words.h"
#include "convert/families/config_reader.h"

namespace assay {

FolderQuantization read_quantization(const std::string& folder, const Json& config) {
  const Json* inside = config.find("quantization_config");
  if (inside == nullptr || inside->is_null()) {
    for (const CheckpointFormat* format : quantized_folder_formats()) {
      const std::string side_file = folder + "/" + std::string(format->side_file);
      if (format->side_file.empty() || !file_exists(side_file)) continue;
      return {format, format->read(read_json_file(side_file), side_file)};
    }
    return {};
  }
  const std::string source = folder + "/config.json: quantization_config";
  const std::string method = ConfigReader(*inside, source).text("quant_method");
  for (const CheckpointFormat* format : quantized_folder_formats()) {
    if (format->quant_method == method) return {format, format->read(*inside, source)};
  }
  const std::string known =
      join_words(quantized_folder_formats(), ", ",
                 [](const CheckpointFormat* format) { return format->quant_method; });
  throw UnsupportedError(fmt::format("{}: quant_method \"{}\" is not supported; these are: {}",
                                     source, method, known));
}

int64_t check_group_size(const std::string& module, int bits, int64_t group_size, int64_t columns) {
  if (columns * bits % 32 != 0) {
    throw UnsupportedError(fmt::format(
        "\"{}\": rows of {} codes of {} bits do not fill 32-bit words", module, columns, bits));
  }
  if (group_size <= 0 || group_size >= columns) return columns;
  if (group_size % 32 != 0 || columns % group_size != 0) {
    throw UnsupportedError(fmt::format(
        "\"{}\": groups of {} columns in rows of {} are not supported; the group size must be a "
        "multiple of 32 that divides the row",
        module, group_size, columns));
  }
  return group_size;
}

std::vector<int32_t> read_group_index(const SafetensorsEntry& entry, int64_t columns,
                                      int64_t group_size, TensorLedger& ledger) {
  if (entry.view.shape != Shape{columns} || entry.view.dtype != DType::kI32) {
    ledger.problem(fmt::format("\"{}\" is {} {}, expected I32 [{}]", entry.name,
                               dtype_name(entry.view.dtype), to_string(entry.view.shape), columns));
    return {};
  }
  const int64_t n_groups = (columns + group_size - 1) / group_size;
  bool natural = true;
  std::vector<int32_t> group_of;
  for (int64_t k = 0; k < columns; ++k) {
    int32_t group = 0;
    std::memcpy(&group, entry.view.bytes.data() + 4 * k, 4);
    if (group < 0 || group >= n_groups) {
      ledger.problem(fmt::format("\"{}\"[{}] is {}, expected a group from 0 to {}", entry.name, k,
                                 group, n_groups - 1));
      return {};
    }
    natural = natural && group == k / group_size;
    group_of.push_back(group);
  }
  if (natural) group_of.clear();
  return group_of;
}

std::unique_ptr<const TensorOnDisk> in_group_order(std::unique_ptr<const TensorOnDisk> matrix,
                                                   std::vector<int32_t> group_of) {
  if (group_of.empty()) return matrix;
  return std::make_unique<ActOrderMatrix>(std::move(matrix), std::move(group_of));
}

}  // namespace assay
