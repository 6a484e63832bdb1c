#include "runtime/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/decoder.h"

namespace assay::cli {

std::vector<Option> model_run_options() {
  return {
      {.name = "device",
       .value_name = "NAME",
       .default_value = "cpu",
       .help = "cpu, cuda or cuda:N.",
       .group = "Run"},
      {.name = "kv-type",
       .value_name = "TYPE",
       .default_value = "f16",
       .help = "Number type of the KV cache. It is part of the arithmetic: other types give other "
               "bits.",
       .group = "Run",
       .choices = kKvTypeWords.list()},
      {.name = "context",
       .short_name = 'c',
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .help = "Positions of the KV cache; by default what prompt and new tokens need.",
       .group = "Run",
       .minimum = 1,
       .maximum = 1 << 30},
      {.name = "batch",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "512",
       .help = "Prompt tokens that run together. Changes memory and speed only, never a bit.",
       .group = "Run",
       .minimum = 1,
       .maximum = 1 << 20},
  };
}

std::shared_ptr<const Checkpoint> open_checkpoint(const std::string& path, Terminal& terminal) {
  auto checkpoint = Checkpoint::open(path);
  for (const std::string& warning : checkpoint->warnings()) {
    terminal.log(LogLevel::kWarning, warning);
  }
  return checkpoint;
}

std::unique_ptr<Executor> load_model(const Arguments& arguments,
                                     std::shared_ptr<const Checkpoint> checkpoint, int64_t n_prompt,
                                     int64_t n_new, Terminal& terminal) {
  const int64_t trained = checkpoint->spec().context_length;
  ExecutorOptions options;
  options.kv_type = *kv_type_from_name(arguments.text("kv-type"));
  options.max_batch_tokens = arguments.integer("batch");
  if (arguments.given("context")) {
    options.context = arguments.integer("context");
    check_context(n_prompt, n_new, options.context);
    if (options.context > trained) {
      terminal.log(LogLevel::kWarning,
                   fmt::format("--context {} is beyond the {} positions of this model's config; "
                               "quality there is unknown",
                               options.context, trained));
    }
  } else {
    check_context(n_prompt, n_new, trained);
    options.context = std::max<int64_t>(1, n_prompt + n_new);
  }
  return open_device(arguments.text("device"))->load(std::move(checkpoint), options);
}

std::vector<int32_t> parse_token_ids(std::string_view text) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  std::vector<int32_t> ids;
  for (size_t begin = text.find_first_not_of(kSeparators); begin != std::string_view::npos;) {
    const size_t end = std::min(text.size(), text.find_first_of(kSeparators, begin));
    const std::string_view word = text.substr(begin, end - begin);
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0) {
      throw UsageError(
          fmt::format("--token-ids: \"{}\" is no token id; give numbers separated by "
                      "commas or spaces",
                      word));
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

}  // namespace assay::cli
