// Speed of Tokenizer: loading, encoding of a text file, of mixed scripts, and of the texts that
// make a careless tokenizer slow. Checks that decoding the ids and encoding again gives the same
// ids. Time is that of the thread (CPU), the median of `rounds`; one JSON line a case.
//   tokenizer_bench <tokenizer.json> <text file> [megabytes=10] [rounds=3]
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/unicode.h"
#include "tests/support/random.h"

namespace assay {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double median_seconds(int rounds, const Work& work) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const double begin = cpu_seconds();
    work();
    seconds.push_back(cpu_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// `unit` again and again up to `n_bytes`, cut between characters.
std::string repeat(std::string_view unit, size_t n_bytes) {
  std::string text;
  while (text.size() < n_bytes) text += unit;
  while (text.size() > n_bytes || tokenization::incomplete_utf8_suffix(text) != 0) text.pop_back();
  return text;
}

/// Words of random letters of ten scripts, with spaces and punctuation: hardly a word comes twice.
std::string mixed_scripts(size_t n_bytes) {
  struct Block {
    uint32_t first, last;
  };
  constexpr Block kBlocks[] = {{'a', 'z'},       {0x430, 0x44F},   {0x3B1, 0x3C9},
                               {0x5D0, 0x5EA},   {0x627, 0x64A},   {0x915, 0x939},
                               {0xE01, 0xE2E},   {0xAC00, 0xD7A3}, {0x3041, 0x3096},
                               {0x4E00, 0x9FA5}, {0xE0, 0xF6},     {0x1F300, 0x1F5FF}};
  test::Random random(1);
  std::string text;
  while (text.size() < n_bytes) {
    const Block& block = kBlocks[random.below(std::size(kBlocks))];
    for (uint64_t i = 0, n = 1 + random.below(9); i < n; ++i) {
      tokenization::append_utf8(
          text, block.first + static_cast<uint32_t>(random.below(block.last - block.first + 1)));
    }
    text += random.below(8) == 0 ? ", " : " ";
  }
  return text;
}

std::string random_bytes_of(std::string_view alphabet, size_t n_bytes) {
  test::Random random(2);
  std::string text;
  for (size_t i = 0; i < n_bytes; ++i) text += alphabet[random.below(alphabet.size())];
  return text;
}

/// Combining marks in an order that normalization must change.
std::string marks(size_t n_bytes) { return "a" + repeat("\u0301\u0323\u0316\u0300", n_bytes); }

void measure(const Tokenizer& tokenizer, std::string_view name, const std::string& text,
             int rounds) {
  const std::vector<int32_t> ids = tokenizer.encode(text, {.add_special_tokens = false});
  const std::string decoded = tokenizer.decode(ids);
  if (tokenizer.encode(decoded, {.add_special_tokens = false}) != ids) {
    throw FormatError(fmt::format("{}: decoding and encoding again gives other ids", name));
  }
  const double encode = median_seconds(rounds, [&] { return tokenizer.encode(text).size(); });
  const double decode = median_seconds(rounds, [&] { return tokenizer.decode(ids).size(); });
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  fmt::print(
      "{{\"case\": \"{}\", \"megabytes\": {:.1f}, \"tokens\": {}, \"encode_mb_per_s\": {:.1f}, "
      "\"encode_ns_per_token\": {:.0f}, \"decode_mb_per_s\": {:.0f}}}\n",
      name, megabytes, ids.size(), megabytes / encode,
      1e9 * encode / static_cast<double>(ids.size()), megabytes / decode);
  std::fflush(stdout);
}

void run(const std::string& tokenizer_path, const std::string& text_path, size_t megabytes,
         int rounds) {
  const double load =
      median_seconds(rounds, [&] { return Tokenizer::from_file(tokenizer_path).vocab_size(); });
  const Tokenizer tokenizer = Tokenizer::from_file(tokenizer_path);
  fmt::print("{{\"case\": \"load\", \"vocab_size\": {}, \"ms\": {:.0f}}}\n", tokenizer.vocab_size(),
             1e3 * load);

  const size_t most = megabytes * 1'000'000;
  measure(tokenizer, "text file", repeat(read_text_file(text_path), most), rounds);
  measure(tokenizer, "mixed scripts", mixed_scripts(most), rounds);
  // Each at a tenth of the size too: the speed should be about the same.
  for (const size_t n_bytes : {most / 10, most}) {
    measure(tokenizer, "one letter", repeat("a", n_bytes), rounds);
    measure(tokenizer, "random letters", random_bytes_of("etaoinshrdlucmf", n_bytes), rounds);
    measure(tokenizer, "spaces", repeat(" ", n_bytes), rounds);
    measure(tokenizer, "newlines", repeat("\n", n_bytes), rounds);
    measure(tokenizer, "spaces and newlines", random_bytes_of("  \n", n_bytes), rounds);
    measure(tokenizer, "digits", random_bytes_of("0123456789", n_bytes), rounds);
    measure(tokenizer, "symbols", random_bytes_of("!#$%&()*+-./:;<=>?@[]^_", n_bytes), rounds);
    measure(tokenizer, "apostrophes", repeat("'", n_bytes), rounds);
    measure(tokenizer, "marks", marks(n_bytes), rounds);
    measure(tokenizer, "one ideograph", repeat("\u4E2D", n_bytes), rounds);
    measure(tokenizer, "starts of special tokens", repeat("<|im_start|", n_bytes), rounds);
  }
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} <tokenizer.json> <text file> [megabytes=10] [rounds=3]\n",
               argv[0]);
    return 2;
  }
  try {
    assay::run(argv[1], argv[2], argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 10,
               argc > 4 ? std::atoi(argv[4]) : 3);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
