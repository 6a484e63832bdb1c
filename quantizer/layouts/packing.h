#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace assay {

/// A matrix of codes (rows, columns), one per byte, packed along its rows' direction into
/// little-endian 32-bit words: (⌈rows·bits/32⌉, columns), code r of a column in bits
/// [r·bits, (r + 1)·bits) of that column's stream. Unused bits are zero.
std::vector<std::byte> pack_down_columns(int bits, std::span<const uint8_t> codes, int64_t rows,
                                         int64_t columns);
/// The same along the columns' direction: (rows, ⌈columns·bits/32⌉).
std::vector<std::byte> pack_along_rows(int bits, std::span<const uint8_t> codes, int64_t rows,
                                       int64_t columns);
/// (rows, columns) → (columns, rows).
std::vector<uint8_t> transpose(std::span<const uint8_t> codes, int64_t rows, int64_t columns);

/// Words of 32 bits that n codes take.
int64_t packed_words(int bits, int64_t n);

}  // namespace assay
