#include "convert/formats/packed_integer.h"

#include <algorithm>

namespace assay {

void pack_codes(int bits, std::span<const uint8_t> codes, std::span<std::byte> out) {
  ASSAY_CHECK(bits >= 1 && bits <= 8);
  const size_t n_bits = codes.size() * static_cast<size_t>(bits);
  ASSAY_CHECK(out.size() == (n_bits + 31) / 32 * 4);
  std::fill(out.begin(), out.end(), std::byte{0});
  for (size_t k = 0; k < codes.size(); ++k) {
    ASSAY_CHECK(codes[k] >> bits == 0);
    const size_t bit = k * static_cast<size_t>(bits);
    const auto moved = static_cast<unsigned>(codes[k]) << (bit % 8);
    out[bit / 8] |= static_cast<std::byte>(moved & 255u);
    if (moved > 255u) out[bit / 8 + 1] |= static_cast<std::byte>(moved >> 8);
  }
}

}  // namespace assay
