#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "convert/chat/chat_prompt.h"
#include "convert/checkpoint.h"
#include "convert/core/sha256.h"
#include "convert/core/version.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/unicode.h"
#include "runtime/commands.h"
#include "runtime/decoder.h"
#include "runtime/run_options.h"

namespace assay::cli {
namespace {

/// The tokenizer of the model, or the one that the user names; empty if the run needs none.
std::optional<Tokenizer> open_tokenizer(const Arguments& arguments, const Checkpoint& checkpoint) {
  const bool ids_only = arguments.given("token-ids") && arguments.flag("raw-ids");
  if (const auto path = arguments.optional_text("tokenizer")) return Tokenizer::open(*path);
  if (ids_only) return std::nullopt;
  if (checkpoint.gguf() != nullptr) {
    return Tokenizer::from_gguf(checkpoint.gguf()->metadata(), checkpoint.path());
  }
  return Tokenizer::from_folder(checkpoint.path());
}

/// The bytes of a file, of a pipe (as the shell's <(…) makes it), or of standard input (-).
std::string read_input(const std::string& path) {
  if (path != "-" && !std::filesystem::is_fifo(path)) return read_text_file(path);
  std::ifstream pipe;
  if (path != "-") pipe.open(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(path == "-" ? std::cin : pipe), {}};
}

/// The prompt as bytes, exactly as given: no escapes are expanded, nothing is stripped (cases B21,
/// B26).
std::string read_prompt(const Arguments& arguments) {
  const char* option = arguments.given("prompt") ? "prompt" : "prompt-file";
  const std::string value = arguments.text(option);
  std::string prompt = arguments.given("prompt") ? value : read_input(value);
  tokenization::require_utf8(prompt, arguments.given("prompt") ? "--prompt" : value);
  return prompt;
}

void check_sources(const Arguments& arguments) {
  int given = 0;
  for (const char* name : {"prompt", "prompt-file", "token-ids", "messages"}) {
    given += arguments.given(name);
  }
  if (given != 1) {
    throw UsageError(
        fmt::format("{} prompts were given; use exactly one of --prompt, "
                    "--prompt-file, --token-ids and --messages",
                    given == 0 ? "no" : "several"));
  }
  if (arguments.flag("chat") || arguments.given("messages")) {
    for (const char* name : {"token-ids", "no-add-special", "no-parse-special"}) {
      if (arguments.given(name)) {
        throw UsageError(fmt::format("--{} does not go with --chat: the template decides", name));
      }
    }
    return;
  }
  for (const char* name : {"system", "chat-template", "template-variables", "date"}) {
    if (arguments.given(name)) throw UsageError(fmt::format("--{} needs --chat", name));
  }
}

/// The template that the user names, or the model's own (case B55: without one, chat is refused).
chat::ChatTemplate open_template(const Arguments& arguments, const Checkpoint& checkpoint) {
  if (const auto path = arguments.optional_text("chat-template")) {
    return chat::ChatTemplate::parse(read_text_file(*path), *path);
  }
  const GgufFile* gguf = checkpoint.gguf();
  const std::optional<chat::TemplateText> found =
      gguf != nullptr ? chat::find_template(gguf->metadata(), checkpoint.path())
                      : chat::find_template(checkpoint.path());
  if (!found) {
    throw UnsupportedError(fmt::format(
        "{}: the model has no chat template, so that --chat cannot know how it marks turns; name "
        "one with --chat-template FILE, or continue a text without --chat",
        checkpoint.path()));
  }
  return chat::ChatTemplate::parse(found->text, found->source);
}

struct Conversation {
  Json messages = Json::array();
  Json tools;  // null: none
};

/// --messages (an array, or an object with "messages" and "tools"), or --prompt as one message of
/// the user; --system goes in front.
Conversation read_conversation(const Arguments& arguments) {
  Conversation conversation;
  if (const auto path = arguments.optional_text("messages")) {
    const std::string source = *path == "-" ? "standard input" : *path;
    Json json = parse_json(read_input(*path), source);
    if (json.is_object()) {
      const Json* messages = json.find("messages");
      if (messages == nullptr) {
        throw FormatError(source +
                          ": expected an array of messages, or an object with the keys "
                          "messages and tools");
      }
      conversation.messages = *messages;
      if (const Json* tools = json.find("tools")) conversation.tools = *tools;
      if (!conversation.tools.is_null() && !conversation.tools.is_array()) {
        throw FormatError(source + ": tools: expected an array of objects");
      }
    } else {
      conversation.messages = std::move(json);
    }
  } else {
    conversation.messages.push(
        Json::object().set("role", "user").set("content", read_prompt(arguments)));
  }
  if (!arguments.given("system")) return conversation;
  Json all = Json::array();
  all.push(Json::object().set("role", "system").set("content", arguments.text("system")));
  for (const Json& message : conversation.messages.as_array()) all.push(message);
  conversation.messages = std::move(all);
  return conversation;
}

/// What the template knows beside the conversation.
Json template_variables(const std::string& text) {
  Json variables;
  try {
    variables = parse_json(text, "--template-variables");
  } catch (const FormatError& error) {
    throw UsageError(error.what());
  }
  if (!variables.is_object()) throw UsageError("--template-variables: expected a JSON object");
  for (const char* name : {"messages", "tools"}) {
    if (variables.find(name) == nullptr) continue;
    throw UsageError(
        fmt::format("--template-variables: \"{}\" belongs to the conversation; it comes from "
                    "--messages FILE",
                    name));
  }
  return variables;
}

/// A rendered conversation: case B24, its messages cannot become special tokens.
struct Prompt {
  std::vector<int32_t> ids;
  std::optional<std::string> text;  // what the chat template made
};

Prompt render_chat(const Arguments& arguments, const Checkpoint& checkpoint,
                   const Tokenizer& tokenizer, Terminal& terminal) {
  const chat::ChatTemplate chat_template = open_template(arguments, checkpoint);
  const Conversation conversation = read_conversation(arguments);
  chat::RenderOptions options;
  if (arguments.given("date")) options.date = chat::parse_date(arguments.text("date"));
  if (const auto variables = arguments.optional_text("template-variables")) {
    options.variables = template_variables(*variables);
  }
  const chat::Text text =
      chat::render(chat_template, tokenizer, conversation.messages, conversation.tools, options);
  Prompt prompt{chat::encode(text, tokenizer), text.bytes()};
  if (prompt.ids.empty()) throw FormatError("the chat template makes an empty prompt");
  const std::span<const int32_t> prefix = tokenizer.special_prefix();
  if (!prefix.empty() && prompt.ids.front() != prefix.front()) {
    terminal.log(LogLevel::kWarning,
                 fmt::format("the chat template does not begin with token {}, which the tokenizer "
                             "puts in front of other texts",
                             prefix.front()));
  }
  return prompt;
}

Prompt make_prompt(const Arguments& arguments, const Checkpoint& checkpoint,
                   const std::optional<Tokenizer>& tokenizer, Terminal& terminal) {
  if (arguments.given("token-ids")) return {parse_token_ids(arguments.text("token-ids")), {}};
  if (arguments.flag("chat") || arguments.given("messages")) {
    return render_chat(arguments, checkpoint, *tokenizer, terminal);
  }
  return {tokenizer->encode(read_prompt(arguments),
                            {.add_special_tokens = !arguments.flag("no-add-special"),
                             .parse_special = !arguments.flag("no-parse-special")}),
          {}};
}

/// Case B25: a prompt that brings its own BOS gets a second one from the tokenizer.
void warn_of_two_bos(std::span<const int32_t> ids, std::optional<int32_t> bos, Terminal& terminal) {
  if (!bos || ids.size() < 2 || ids[0] != *bos || ids[1] != *bos) return;
  terminal.log(LogLevel::kWarning,
               fmt::format("the prompt begins with two BOS tokens (id {}), which lowers quality; "
                           "take it out of the text or add --no-add-special",
                           *bos));
}

/// Case B54: what config, generation_config and the tokenizer call the end.
std::vector<int32_t> stop_ids(const Arguments& arguments, const ModelSpec& spec,
                              const std::optional<Tokenizer>& tokenizer) {
  if (arguments.flag("ignore-eos")) return {};
  std::vector<int32_t> ids = spec.stop_ids;
  if (tokenizer && tokenizer->eos_id()) ids.push_back(*tokenizer->eos_id());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

GenerateOptions generate_options(const Arguments& arguments, Terminal& terminal) {
  GenerateOptions options;
  options.max_new_tokens = arguments.integer("max-new-tokens");
  options.sampling = {.temperature = static_cast<float>(arguments.number("temperature")),
                      .top_k = arguments.integer("top-k"),
                      .top_p = static_cast<float>(arguments.number("top-p")),
                      .min_p = static_cast<float>(arguments.number("min-p")),
                      .seed = static_cast<uint64_t>(arguments.integer("seed"))};
  check_sampling_options(options.sampling);
  for (const char* name : {"top-k", "top-p", "min-p", "seed"}) {
    if (options.sampling.temperature > 0.0f || !arguments.given(name)) continue;
    terminal.log(LogLevel::kWarning,
                 fmt::format("--{} changes nothing at --temperature 0, which always takes the "
                             "likeliest token",
                             name));
  }
  return options;
}

/// Prints new tokens as they come: text, or ids one a line. The stop token is not shown as text.
class Printer {
 public:
  Printer(Terminal& terminal, const Tokenizer* tokenizer, std::vector<int32_t> stop_ids)
      : terminal_(terminal), stop_ids_(std::move(stop_ids)) {
    if (tokenizer != nullptr) stream_.emplace(*tokenizer);
  }

  void push(int32_t id) {
    const bool stop = std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
    if (!stream_) {
      show(fmt::format("{}\n", id));
    } else if (!stop) {
      show(stream_->push(id));
    }
  }
  void finish() {
    if (!stream_) return;
    show(stream_->finish());
    if (!terminal_.json() && !text_.ends_with('\n')) terminal_.print("\n");
  }
  const std::string& text() const { return text_; }
  bool shows_text() const { return stream_.has_value(); }

 private:
  void show(const std::string& text) {
    text_ += text;
    if (!terminal_.json()) terminal_.print(text);
  }

  Terminal& terminal_;
  std::vector<int32_t> stop_ids_;
  std::optional<Tokenizer::Stream> stream_;
  std::string text_;
};

Json ids_json(std::span<const int32_t> ids) {
  Json array = Json::array();
  for (const int32_t id : ids) array.push(int64_t{id});
  return array;
}

Json stats_json(const Generation& run, size_t n_prompt) {
  Json stats = Json::object();
  stats.set("prompt_tokens", static_cast<int64_t>(n_prompt));
  stats.set("new_tokens", static_cast<int64_t>(run.token_ids.size()));
  stats.set("ttft_ms", run.first_token_s * 1e3);
  stats.set("tpot_ms", run.seconds_per_token() * 1e3);
  stats.set("elapsed_s", run.elapsed_s);
  return stats;
}

std::string stats_text(const Generation& run, size_t n_prompt) {
  const double tpot = run.seconds_per_token();
  return fmt::format(
      "prompt_tokens {}  new_tokens {}  ttft_ms {:.2f}  tpot_ms {:.3f}  tokens_per_s {:.2f}  "
      "elapsed_s {:.3f}  token_ids_sha256 {}",
      n_prompt, run.token_ids.size(), run.first_token_s * 1e3, tpot * 1e3,
      tpot > 0.0 ? 1.0 / tpot : 0.0, run.elapsed_s, sha256_of_token_ids(run.token_ids));
}

Json result_json(const Generation& run, const Prompt& prompt, const Printer& printer,
                 const Executor& executor) {
  Json result = Json::object();
  result.set("arithmetic", kArithmetic).set("device", executor.device_name());
  result.set("kv_type", kv_type_name(executor.options().kv_type));
  if (prompt.text) result.set("prompt", *prompt.text);
  result.set("prompt_ids", ids_json(prompt.ids)).set("token_ids", ids_json(run.token_ids));
  result.set("token_ids_sha256", sha256_of_token_ids(run.token_ids));
  if (printer.shows_text()) result.set("text", printer.text());
  result.set("stop_reason", stop_reason_name(run.stop_reason));
  result.set("stats", stats_json(run, prompt.ids.size()));
  return result;
}

ExitCode run_generate(const Arguments& arguments, Terminal& terminal) {
  check_sources(arguments);
  GenerateOptions options = generate_options(arguments, terminal);
  const auto checkpoint = open_checkpoint(arguments.text("MODEL"), terminal);
  const ModelSpec& spec = checkpoint->spec();
  const std::optional<Tokenizer> tokenizer = open_tokenizer(arguments, *checkpoint);
  const Prompt prompt = make_prompt(arguments, *checkpoint, tokenizer, terminal);
  warn_of_two_bos(prompt.ids, tokenizer && tokenizer->bos_id() ? tokenizer->bos_id() : spec.bos_id,
                  terminal);
  options.stop_ids = stop_ids(arguments, spec, tokenizer);

  const auto executor = load_model(arguments, checkpoint, static_cast<int64_t>(prompt.ids.size()),
                                   options.max_new_tokens, terminal);
  Printer printer(terminal, arguments.flag("raw-ids") ? nullptr : &*tokenizer, options.stop_ids);
  const Generation run = generate(*executor, 0, prompt.ids, options, [&](int32_t id) {
    printer.push(id);
    return !stop_requested();
  });
  printer.finish();
  if (terminal.json()) {
    terminal.print(result_json(run, prompt, printer, *executor).dump() + "\n");
  } else if (arguments.flag("stats")) {
    terminal.log(LogLevel::kInfo, stats_text(run, prompt.ids.size()));
  }
  if (run.stop_reason == StopReason::kInterrupted) {
    throw StoppedError(fmt::format("stopped after {} new tokens", run.token_ids.size()));
  }
  return ExitCode::kDone;
}

std::vector<Option> generate_command_options() {
  std::vector<Option> options = {
      {.name = "prompt",
       .short_name = 'p',
       .value_name = "TEXT",
       .help = "Text to continue, as it is: escapes such as \\n are not expanded, spaces at its "
               "end stay.",
       .group = "Input"},
      {.name = "prompt-file",
       .short_name = 'f',
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "File or pipe whose bytes are the prompt; - reads standard input.",
       .group = "Input"},
      {.name = "token-ids",
       .value_name = "IDS",
       .help = "Prompt as token ids, separated by commas or spaces; nothing is added.",
       .group = "Input"},
      {.name = "chat",
       .kind = ValueKind::kFlag,
       .help = "Take the prompt as a message of the user and render it by the model's chat "
               "template. What messages say never becomes a special token.",
       .group = "Chat"},
      {.name = "messages",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "JSON file of a conversation, rendered by the chat template: an array of objects "
               "with role and content, or an object with messages and tools; - reads standard "
               "input.",
       .group = "Chat"},
      {.name = "system",
       .value_name = "TEXT",
       .help = "System message in front of the others.",
       .group = "Chat"},
      {.name = "chat-template",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Template to use instead of the model's own.",
       .group = "Chat"},
      {.name = "template-variables",
       .value_name = "JSON",
       .help = "Further variables of the template, as a JSON object.",
       .group = "Chat"},
      {.name = "date",
       .value_name = "DAY",
       .help = "The day, as 2026-01-31, for templates that print it; without, they do not know it, "
               "so that a prompt is the same every day.",
       .group = "Chat"},
      {.name = "tokenizer",
       .kind = ValueKind::kPath,
       .value_name = "PATH",
       .help = "tokenizer.json, a folder with one, or a GGUF file, instead of the model's own.",
       .group = "Input"},
      {.name = "no-add-special",
       .kind = ValueKind::kFlag,
       .help = "Do not add BOS (or what else the tokenizer puts in front).",
       .group = "Input"},
      {.name = "no-parse-special",
       .kind = ValueKind::kFlag,
       .help = "Treat the spelling of special tokens in the prompt as plain text. Use it for text "
               "from others.",
       .group = "Input"},
      {.name = "max-new-tokens",
       .short_name = 'n',
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "128",
       .help = "Most new tokens.",
       .group = "Generation",
       .minimum = 0},
      {.name = "temperature",
       .kind = ValueKind::kNumber,
       .value_name = "T",
       .default_value = "0",
       .help = "0 always takes the likeliest token; higher is more varied.",
       .group = "Generation",
       .minimum = 0},
      {.name = "top-k",
       .kind = ValueKind::kInteger,
       .value_name = "K",
       .default_value = "0",
       .help = "Draw from the K likeliest tokens; 0 is off.",
       .group = "Generation",
       .minimum = 0},
      {.name = "top-p",
       .kind = ValueKind::kNumber,
       .value_name = "P",
       .default_value = "1",
       .help = "Draw from the fewest tokens whose probabilities reach P, above 0; 1 is off.",
       .group = "Generation",
       .minimum = 0,
       .maximum = 1},
      {.name = "min-p",
       .kind = ValueKind::kNumber,
       .value_name = "P",
       .default_value = "0",
       .help = "Drop tokens less likely than P times the likeliest; 0 is off.",
       .group = "Generation",
       .minimum = 0,
       .maximum = 1},
      {.name = "seed",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "0",
       .help = "Seed of the draws: the same seed gives the same tokens on every machine.",
       .group = "Generation",
       .minimum = 0},
      {.name = "ignore-eos",
       .kind = ValueKind::kFlag,
       .help = "Go on past end-of-text tokens.",
       .group = "Generation"},
      {.name = "raw-ids",
       .kind = ValueKind::kFlag,
       .help = "Print token ids, one a line, instead of text.",
       .group = "Output"},
      {.name = "stats",
       .kind = ValueKind::kFlag,
       .help = "Afterwards print time to first token (ttft_ms), mean time per further token "
               "(tpot_ms), elapsed_s and the hash of the new ids.",
       .group = "Output"},
  };
  for (Option& option : model_run_options()) options.push_back(std::move(option));
  return options;
}

}  // namespace

const Command& generate_command() {
  static const Command command = {
      .name = "generate",
      .brief = "Continue a prompt, streaming the text",
      .description =
          "Runs a model (Hugging Face folder, W4A16 folder or GGUF file) on a prompt and streams "
          "what it says. The tokens depend on model, prompt and options alone: not on threads, "
          "instruction set, batch or machine. Ends at the stop tokens of config, "
          "generation_config and tokenizer, or after --max-new-tokens.",
      .positionals = {{.name = "MODEL", .help = "Folder or GGUF file."}},
      .options = generate_command_options(),
      .examples = {{"assay generate tests/data/llama-tiny --prompt \"The file system\"",
                    "The likeliest continuation, 128 tokens."},
                   {"assay generate tests/data/llama-tiny -p \"NAME\" -n 64 --temperature 0.8 "
                    "--top-p 0.95 --seed 7 --stats",
                    "A drawn continuation that everyone can repeat, with timings."},
                   {"assay generate MODEL --chat -p \"Hello\" --system \"Be brief.\"",
                    "The answer of a model with a chat template."},
                   {"assay generate tests/data/llama-tiny --token-ids 0,17,4 -n 8 --raw-ids",
                    "Ids in, ids out: no tokenizer takes part."}},
      .run = run_generate,
  };
  return command;
}

}  // namespace assay::cli
