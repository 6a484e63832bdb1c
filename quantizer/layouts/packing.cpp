#include "quantizer/layouts/packing.h"

#include <cstring>

#include "convert/formats/packed_integer.h"

namespace assay {

int64_t packed_words(int bits, int64_t n) { return (n * bits + 31) / 32; }

std::vector<uint8_t> transpose(std::span<const uint8_t> codes, int64_t rows, int64_t columns) {
  std::vector<uint8_t> out(codes.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = codes[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

std::vector<std::byte> pack_along_rows(int bits, std::span<const uint8_t> codes, int64_t rows,
                                       int64_t columns) {
  const auto row_bytes = static_cast<size_t>(4 * packed_words(bits, columns));
  std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes);
  for (int64_t r = 0; r < rows; ++r) {
    pack_codes(bits, codes.subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns)),
               std::span(out).subspan(static_cast<size_t>(r) * row_bytes, row_bytes));
  }
  return out;
}

std::vector<std::byte> pack_down_columns(int bits, std::span<const uint8_t> codes, int64_t rows,
                                         int64_t columns) {
  const int64_t words = packed_words(bits, rows);
  const std::vector<std::byte> packed =
      pack_along_rows(bits, transpose(codes, rows, columns), columns, rows);
  std::vector<std::byte> out(packed.size());
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t w = 0; w < words; ++w) {
      std::memcpy(out.data() + 4 * (w * columns + c), packed.data() + 4 * (c * words + w), 4);
    }
  }
  return out;
}

}  // namespace assay
