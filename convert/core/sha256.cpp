#include "convert/core/sha256.h"

#include <openssl/evp.h>

#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"

namespace assay {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() {
    // A failure here means a broken or stripped libcrypto.
    if (context == nullptr || EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) {
      throw ResourceError("libcrypto cannot compute SHA-256; check the OpenSSL installation");
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  ASSAY_CHECK(state_ != nullptr);
  ASSAY_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish() {
  ASSAY_CHECK(state_ != nullptr);
  std::array<unsigned char, 32> digest;
  ASSAY_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1);
  state_.reset();
  return hex_of(std::as_bytes(std::span(digest)));
}

std::string hex_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    out += kHex[static_cast<size_t>(byte >> 4)];
    out += kHex[static_cast<size_t>(byte & std::byte{15})];
  }
  return out;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string sha256_of_token_ids(std::span<const int32_t> token_ids) {
  Sha256 hash;
  std::array<std::byte, 8 * 512> buffer;
  size_t used = 0;
  for (const int32_t id : token_ids) {
    const auto wide = static_cast<uint64_t>(int64_t{id});
    for (int shift = 0; shift < 64; shift += 8) {
      buffer[used++] = static_cast<std::byte>((wide >> shift) & 0xffu);
    }
    if (used == buffer.size()) {
      hash.update(buffer);
      used = 0;
    }
  }
  hash.update(std::span(buffer).first(used));
  return hash.finish();
}

std::string sha256_of_file(const std::string& path, const std::function<void()>& progress) {
  Sha256 hash;
  read_file_in_pieces(path, [&](std::span<const std::byte> piece) {
    if (progress) progress();
    hash.update(piece);
  });
  return hash.finish();
}

}  // namespace assay
