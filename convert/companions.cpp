#include "convert/companions.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "convert/core/error.h"
#include "convert/core/hashed_file.h"

namespace assay {
namespace {

// A name, or its beginning where it ends in '*'. Source: transformers' file names.
constexpr std::string_view kCompanions[] = {
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.json",
    "vocab.txt",
};

bool is_companion(std::string_view name) {
  return std::any_of(std::begin(kCompanions), std::end(kCompanions), [&](std::string_view known) {
    if (known.back() != '*') return name == known;
    known.remove_suffix(1);
    return name.starts_with(known);
  });
}

}  // namespace

std::vector<std::string> companion_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_companion(name) && entry->is_regular_file()) names.push_back(name);
  }
  if (error) throw_system_error(folder + ": cannot list the folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

WrittenFile write_companion(const std::string& to, const std::string& name, std::string_view text) {
  HashedFile file(to + "/" + name);
  file.write(text);
  return {name, text.size(), file.commit(), {}};
}

WrittenFile copy_companion(const std::string& from, const std::string& to,
                           const std::string& name) {
  HashedFile file(to + "/" + name);
  read_file_in_pieces(from + "/" + name,
                      [&](std::span<const std::byte> piece) { file.write(piece); });
  const uint64_t bytes = file.size();
  return {name, bytes, file.commit(), {}};
}

}  // namespace assay
