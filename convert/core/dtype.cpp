#include "convert/core/dtype.h"

#include <array>

#include "convert/core/error.h"

namespace assay {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

// In the order of the enum, which the check below holds to.
constexpr std::array kRows = {
    Row{DType::kBool, "BOOL", 1},
    Row{DType::kU8, "U8", 1},
    Row{DType::kI8, "I8", 1},
    Row{DType::kF8E5M2, "F8_E5M2", 1},
    Row{DType::kF8E4M3, "F8_E4M3", 1},
    Row{DType::kF8E8M0, "F8_E8M0", 1},
    Row{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 1},
    Row{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 1},
    Row{DType::kI16, "I16", 2},
    Row{DType::kU16, "U16", 2},
    Row{DType::kF16, "F16", 2},
    Row{DType::kBF16, "BF16", 2},
    Row{DType::kI32, "I32", 4},
    Row{DType::kU32, "U32", 4},
    Row{DType::kF32, "F32", 4},
    Row{DType::kC64, "C64", 8},
    Row{DType::kF64, "F64", 8},
    Row{DType::kI64, "I64", 8},
    Row{DType::kU64, "U64", 8},
};

constexpr bool rows_follow_the_enum() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum());
static_assert(kRows.size() == static_cast<size_t>(DType::kU64) + 1);

const Row& row_of(DType dtype) {
  ASSAY_CHECK(static_cast<size_t>(dtype) < kRows.size());
  return kRows[static_cast<size_t>(dtype)];
}

}  // namespace

size_t dtype_bytes(DType dtype) { return row_of(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace assay
