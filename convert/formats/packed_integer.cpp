#include "convert/formats/packed_integer.h"

#include <algorithm>

namespace assay {

void pack_codes(int bits, std::span<const uint8_t> codes, std::span<std::byte> out) {
  ASSAY_CHECK(bits == 4 || bits == 8);
  const size_t per_word = 32 / static_cast<size_t>(bits);
  ASSAY_CHECK(out.size() == (codes.size() + per_word - 1) / per_word * 4);
  std::fill(out.begin(), out.end(), std::byte{0});
  for (size_t k = 0; k < codes.size(); ++k) {
    if (bits == 8) {
      out[k] = std::byte{codes[k]};
    } else {
      ASSAY_CHECK(codes[k] < 16);
      out[k / 2] |= std::byte{codes[k]} << (4 * (k % 2));
    }
  }
}

}  // namespace assay
