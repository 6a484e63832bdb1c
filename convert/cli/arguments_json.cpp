#include "convert/cli/command.h"
#include "convert/cli/option_table.h"

namespace assay::cli {
namespace {

Json value_to_json(const std::string& text, ValueKind kind) {
  int64_t integer = 0;
  double number = 0;
  uint64_t bytes = 0;
  switch (kind) {
    case ValueKind::kFlag:
      return Json(text == "true");
    case ValueKind::kInteger:
      if (parse_integer(text, integer)) return Json(integer);
      break;
    case ValueKind::kNumber:
      if (parse_number(text, number)) return Json(number);
      break;
    case ValueKind::kBytes:
      if (parse_bytes(text, bytes)) return Json(bytes);
      break;
    case ValueKind::kText:
    case ValueKind::kPath:
      break;
  }
  return Json(text);
}

}  // namespace

Json Arguments::value_to_json(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return Json();
  const Value& value = found->second;
  if (!value.details.is_list) {
    return value.values.empty() ? Json()
                                : cli::value_to_json(value.values.back(), value.details.kind);
  }
  Json list = Json::array();
  for (const std::string& text : value.values)
    list.push(cli::value_to_json(text, value.details.kind));
  return list;
}

Json Arguments::to_json() const {
  Json result = Json::object();
  for (const auto& [name, value] : values_) result.set(name, value_to_json(name));
  return result;
}

}  // namespace assay::cli
