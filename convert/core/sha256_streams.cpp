#include "convert/core/sha256_streams.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace assay {
namespace {

using State = std::array<uint32_t, 8>;
constexpr size_t kBlock = 64;

#if defined(__x86_64__)

bool has_sha_instructions() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((b >> 29) & 1u) != 0;
  }();
  return has && active_isa() != Isa::kScalar;
}

// FIPS 180-4, section 4.2.2.
alignas(16) constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#define ASSAY_SHA __attribute__((target("sha,sse4.1"), always_inline)) inline

// One stream's state as the instructions want it, and the last 16 words of its schedule.
struct Rounds {
  __m128i abef, cdgh;
  __m128i w[4];
};

// Four rounds, 4 * kStep to 4 * kStep + 3, for each of the streams: their steps do not wait for
// each other's.
template <size_t kStep, size_t kLanes>
ASSAY_SHA void four_rounds(std::array<Rounds, kLanes>& lanes,
                           const std::array<const std::byte*, kLanes>& blocks) {
  const __m128i constants =
      _mm_load_si128(reinterpret_cast<const __m128i*>(&kRoundConstants[4 * kStep]));
  for (size_t lane = 0; lane < kLanes; ++lane) {
    Rounds& r = lanes[lane];
    __m128i& w = r.w[kStep % 4];
    if constexpr (kStep < 4) {
      const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
      w = _mm_shuffle_epi8(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks[lane] + 16 * kStep)), big_endian);
    } else {
      const __m128i w2 = r.w[(kStep + 2) % 4], w3 = r.w[(kStep + 3) % 4];
      w = _mm_add_epi32(_mm_sha256msg1_epu32(w, r.w[(kStep + 1) % 4]), _mm_alignr_epi8(w3, w2, 4));
      w = _mm_sha256msg2_epu32(w, w3);
    }
    const __m128i sum = _mm_add_epi32(w, constants);
    r.cdgh = _mm_sha256rnds2_epu32(r.cdgh, r.abef, sum);
    r.abef = _mm_sha256rnds2_epu32(r.abef, r.cdgh, _mm_shuffle_epi32(sum, 0x0e));
  }
}

template <size_t kLanes, size_t... kSteps>
ASSAY_SHA void all_rounds(std::array<Rounds, kLanes>& lanes,
                          const std::array<const std::byte*, kLanes>& blocks,
                          std::index_sequence<kSteps...>) {
  (four_rounds<kSteps>(lanes, blocks), ...);
}

/// Takes `n` blocks of 64 bytes into each state.
template <size_t kLanes>
__attribute__((target("sha,sse4.1"))) void compress(const std::array<State*, kLanes>& states,
                                                    std::array<const std::byte*, kLanes> blocks,
                                                    size_t n) {
  std::array<Rounds, kLanes> lanes;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto* const words = reinterpret_cast<const __m128i*>(states[lane]->data());
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);      // words 1 0 3 2
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);  // words 7 6 5 4
    lanes[lane].abef = _mm_alignr_epi8(badc, hgfe, 8);
    lanes[lane].cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
  }
  for (; n > 0; --n) {
    const std::array<Rounds, kLanes> before = lanes;
    all_rounds(lanes, blocks, std::make_index_sequence<16>());
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane].abef = _mm_add_epi32(lanes[lane].abef, before[lane].abef);
      lanes[lane].cdgh = _mm_add_epi32(lanes[lane].cdgh, before[lane].cdgh);
      blocks[lane] += kBlock;
    }
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    auto* const words = reinterpret_cast<__m128i*>(states[lane]->data());
    const __m128i feba = _mm_shuffle_epi32(lanes[lane].abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(lanes[lane].cdgh, 0xb1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

#undef ASSAY_SHA

#else

bool has_sha_instructions() { return false; }

template <size_t kLanes>
void compress(const std::array<State*, kLanes>&, std::array<const std::byte*, kLanes>, size_t) {
  ASSAY_CHECK(false);
}

#endif

}  // namespace

/// A stream on its way: what was hashed of it, and the blocks that wait.
class Sha256Streams::Lane {
 public:
  Lane(size_t place, ByteStream& stream) : place_(place), stream_(&stream) {}

  size_t place() const { return place_; }
  State& state() { return state_; }
  const std::byte* blocks() const { return piece_.data(); }
  size_t n_blocks() const { return piece_.size() / kBlock; }
  void drop_blocks(size_t n) { piece_ = piece_.subspan(n * kBlock); }

  /// Goes on until there are blocks; false at the end of the stream.
  bool fetch() {
    while (n_blocks() == 0 || n_tail_ > 0) {
      const size_t n = std::min(kBlock - n_tail_, piece_.size());
      std::copy_n(piece_.begin(), n, tail_.begin() + static_cast<std::ptrdiff_t>(n_tail_));
      n_tail_ += n;
      piece_ = piece_.subspan(n);
      if (n_tail_ == kBlock) {
        compress<1>({&state_}, {tail_.data()}, 1);
        n_tail_ = 0;
      }
      if (!piece_.empty()) continue;
      piece_ = stream_->next();
      if (piece_.empty()) return false;
      n_bytes_ += piece_.size();
    }
    return true;
  }

  std::string finish() {
    tail_[n_tail_++] = std::byte{0x80};
    if (n_tail_ > kBlock - 8) {
      std::fill(tail_.begin() + static_cast<std::ptrdiff_t>(n_tail_), tail_.end(), std::byte{0});
      compress<1>({&state_}, {tail_.data()}, 1);
      n_tail_ = 0;
    }
    std::fill(tail_.begin() + static_cast<std::ptrdiff_t>(n_tail_), tail_.end(), std::byte{0});
    const uint64_t n_bits = 8 * n_bytes_;
    for (size_t i = 0; i < 8; ++i) {
      tail_[kBlock - 1 - i] = static_cast<std::byte>((n_bits >> (8 * i)) & 0xffu);
    }
    compress<1>({&state_}, {tail_.data()}, 1);
    std::array<std::byte, 32> digest;
    for (size_t i = 0; i < digest.size(); ++i) {
      digest[i] = static_cast<std::byte>((state_[i / 4] >> (24 - 8 * (i % 4))) & 0xffu);
    }
    return hex_of(digest);
  }

 private:
  size_t place_;
  ByteStream* stream_;
  // FIPS 180-4, section 5.3.3.
  State state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::span<const std::byte> piece_;
  std::array<std::byte, kBlock> tail_;
  size_t n_tail_ = 0;
  uint64_t n_bytes_ = 0;
};

Sha256Streams::Sha256Streams(std::vector<ByteStream> streams)
    : streams_(std::move(streams)), hashes_(streams_.size()), order_(streams_.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [this](size_t a, size_t b) { return streams_[a].bytes > streams_[b].bytes; });
}

bool Sha256Streams::take(size_t& place) {
  place = next_.fetch_add(1);
  return place < order_.size();
}

// Streams are begun in order, so that all before the one that failed end, too.
void Sha256Streams::fail(size_t place) {
  stop();
  const std::lock_guard lock(mutex_);
  if (place >= failed_at_) return;
  failed_at_ = place;
  failure_ = std::current_exception();
}

void Sha256Streams::work() noexcept {
  if (has_sha_instructions()) {
    hash_two_at_a_time();
  } else {
    hash_one_at_a_time();
  }
}

void Sha256Streams::hash_one_at_a_time() {
  for (size_t place = 0; take(place);) {
    try {
      Sha256 hash;
      ByteStream& stream = streams_[order_[place]];
      for (auto piece = stream.next(); !piece.empty(); piece = stream.next()) hash.update(piece);
      hashes_[order_[place]] = hash.finish();
    } catch (...) {
      fail(place);
    }
  }
}

void Sha256Streams::hash_two_at_a_time() {
  std::array<std::optional<Lane>, 2> lanes;
  for (;;) {
    for (std::optional<Lane>& lane : lanes) {
      for (;;) {
        size_t place = 0;
        if (!lane && take(place)) lane.emplace(place, streams_[order_[place]]);
        if (!lane) break;
        try {
          if (lane->fetch()) break;
          hashes_[order_[lane->place()]] = lane->finish();
        } catch (...) {
          fail(lane->place());
        }
        lane.reset();
      }
    }
    if (!lanes[0]) lanes[0].swap(lanes[1]);
    if (!lanes[0]) return;
    Lane& a = *lanes[0];
    if (lanes[1]) {
      Lane& b = *lanes[1];
      const size_t n = std::min(a.n_blocks(), b.n_blocks());
      compress<2>({&a.state(), &b.state()}, {a.blocks(), b.blocks()}, n);
      a.drop_blocks(n);
      b.drop_blocks(n);
    } else {
      const size_t n = a.n_blocks();
      compress<1>({&a.state()}, {a.blocks()}, n);
      a.drop_blocks(n);
    }
  }
}

std::vector<std::string> Sha256Streams::finish() {
  if (failure_) std::rethrow_exception(failure_);
  return std::move(hashes_);
}

std::vector<std::string> sha256_of_all(const std::vector<std::span<const std::byte>>& parts,
                                       const std::function<void(size_t)>& progress) {
  static constexpr size_t kPieceBytes = size_t{64} << 20;
  std::vector<ByteStream> streams;
  for (size_t i = 0; i < parts.size(); ++i) {
    streams.push_back({parts[i].size(), [&progress, i, left = parts[i]]() mutable {
                         if (progress && !left.empty()) progress(i);
                         const auto piece = left.first(std::min(left.size(), kPieceBytes));
                         left = left.subspan(piece.size());
                         return piece;
                       }});
  }
  Sha256Streams hashes(std::move(streams));
  parallel_for(n_threads(), 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) hashes.work();
  });
  return hashes.finish();
}

}  // namespace assay
