// assay verify-equivalence: command line only.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "convert/cli/command.h"
#include "convert/core/file.h"
#include "convert/core/overwrite.h"
#include "convert/core/paths.h"
#include "convert/core/sha256.h"
#include "verify/commands.h"
#include "verify/equivalence.h"
#include "verify/equivalence_output.h"
#include "verify/write_reference.h"

namespace assay::cli {
namespace {

constexpr size_t kMostGreedyTokens = 500;  // longer prompts are not continued in a written bundle

std::optional<double> optional_number(const Arguments& arguments, std::string_view name) {
  if (!arguments.given(name)) return std::nullopt;
  return arguments.number(name);
}

void stop_if_asked() {
  if (stop_requested()) throw StoppedError("stopped; nothing was written");
}

TokenPlanOptions token_options(const Arguments& arguments) {
  TokenPlanOptions tokens;
  tokens.prompts_file = arguments.text("prompts");
  tokens.token_ids_file = arguments.text("token-ids");
  tokens.text_file = arguments.text("text");
  tokens.tokenizer = arguments.text("tokenizer");
  if (arguments.given("windows")) tokens.n_windows = arguments.integer("windows");
  tokens.window_length = arguments.integer("window-length");
  return tokens;
}

EquivalenceOptions equivalence_options(const Arguments& arguments) {
  EquivalenceOptions options;
  options.tokens = token_options(arguments);
  if (arguments.given("kv-type")) options.kv_type = kv_type_from_name(arguments.text("kv-type"));
  options.device = arguments.text("device");
  options.n_new_tokens = arguments.integer("new-tokens");
  if (const std::string policy = arguments.text("policy"); policy != "auto") {
    options.policy.bitwise = policy == "bitwise";
  }
  options.policy.max_logit_difference = optional_number(arguments, "max-logit-difference");
  options.policy.max_window_nll_difference =
      optional_number(arguments, "max-window-nll-difference");
  options.policy.max_delta_nll = optional_number(arguments, "max-delta-nll");
  options.policy.max_kld = optional_number(arguments, "max-kld");
  const std::vector<std::string> skipped = arguments.list("skip");
  const auto wanted = [&](std::string_view name) {
    return std::find(skipped.begin(), skipped.end(), name) == skipped.end();
  };
  options.weights = wanted("weights");
  options.tokenizer = wanted("tokenizer");
  options.logits = wanted("logits");
  options.greedy = wanted("greedy");
  options.nll = wanted("nll");
  options.self_equality = wanted("self-equality");
  return options;
}

ExitCode run_comparison(const Arguments& arguments, Terminal& terminal, const std::string& path_b) {
  const EquivalenceOptions options = equivalence_options(arguments);
  Side a = Side::open(arguments.text("A")), b = Side::open(path_b);
  if (arguments.flag("dry-run")) {
    const EquivalencePlan plan = plan_equivalence(a, b, options);
    terminal.print(terminal.json() ? to_json(plan).dump() + "\n" : to_text(plan));
    return ExitCode::kDone;
  }
  EquivalenceReport report;
  {
    const auto progress = terminal.progress("verify", 1.0);
    report = verify_equivalence(a, b, options, [&](double done, std::string_view label) {
      stop_if_asked();
      progress->update(done, label);
    });
    progress->update(1.0, "done");
  }
  const Json json = to_json(report);
  if (const std::string file = arguments.text("json-out"); !file.empty()) {
    write_text_file(file, json.dump() + "\n");
  }
  if (const std::string file = arguments.text("junit"); !file.empty()) {
    write_text_file(file, to_junit(report));
  }
  terminal.print(terminal.json() ? json.dump() + "\n" : to_text(report));
  return report.equal() ? ExitCode::kDone : ExitCode::kDifference;
}

/// What goes into a written bundle: prompts, greedy ids and windows of a bundle folder, or the
/// prompts of a file and the windows of a text.
WriteReferenceOptions reference_options(const Arguments& arguments, const Checkpoint& checkpoint) {
  const std::string prompts = arguments.text("prompts");
  if (prompts.empty()) {
    throw UsageError(
        "--write-reference needs --prompts: a prompts.json, or a reference bundle whose prompts "
        "and windows are taken over");
  }
  WriteReferenceOptions options;
  options.folder = without_trailing_slashes(arguments.text("write-reference"));
  options.model = std::filesystem::path(checkpoint.path()).filename().string();
  options.n_new_tokens = arguments.given("new-tokens") ? arguments.integer("new-tokens") : 128;
  if (ReferenceBundle::is_bundle(prompts)) {
    const ReferenceBundle bundle = ReferenceBundle::open(prompts);
    options.prompts = bundle.header();
    options.windows = bundle.windows();
    for (const ReferenceGreedy& greedy : bundle.greedy()) options.greedy_ids.push_back(greedy.id);
  } else {
    options.prompts = read_prompts(prompts);
    for (const ReferencePrompt& prompt : options.prompts.prompts) {
      if (prompt.token_ids.size() > kMostGreedyTokens || prompt.keeps_all_positions()) continue;
      options.greedy_ids.push_back(prompt.id);
    }
  }
  if (!options.prompts.bos_id) options.prompts.bos_id = checkpoint.spec().bos_id;
  return options;
}

void add_text_windows(const Arguments& arguments, const Checkpoint& checkpoint,
                      WriteReferenceOptions& options) {
  const TokenPlanOptions tokens = token_options(arguments);
  const int64_t n_windows = tokens.n_windows.value_or(16);
  if (!tokens.text_file.empty()) {
    const Tokenizer tokenizer =
        Tokenizer::open(tokens.tokenizer.empty() ? checkpoint.path() : tokens.tokenizer);
    options.windows = windows_of_text(tokenizer, read_evaluation_text(tokens.text_file),
                                      tokens.window_length, n_windows);
    options.text_name = std::filesystem::path(tokens.text_file).filename().string();
  } else if (!tokens.token_ids_file.empty()) {
    options.windows = read_windows(tokens.token_ids_file, tokens.window_length, n_windows,
                                   checkpoint.spec().bos_id);
  } else if (options.windows && tokens.n_windows && *tokens.n_windows > 0 &&
             static_cast<size_t>(*tokens.n_windows) < options.windows->windows.size()) {
    options.windows->windows.resize(static_cast<size_t>(*tokens.n_windows));
  }
}

/// Positions that the longest run of the bundle needs.
int64_t context_of(const WriteReferenceOptions& options) {
  int64_t most = 0;
  for (const ReferencePrompt& prompt : options.prompts.prompts) {
    const bool greedy = std::find(options.greedy_ids.begin(), options.greedy_ids.end(),
                                  prompt.id) != options.greedy_ids.end();
    most = std::max(
        most, static_cast<int64_t>(prompt.token_ids.size()) + (greedy ? options.n_new_tokens : 0));
  }
  if (options.windows) most = std::max(most, options.windows->window_length);
  return most;
}

ExitCode run_write_reference(const Arguments& arguments, Terminal& terminal) {
  const auto checkpoint = Checkpoint::open(arguments.text("A"));
  WriteReferenceOptions options = reference_options(arguments, *checkpoint);
  require_free_folder_name(options.folder, arguments.flag("force"), "reference bundle",
                           {"prompts.json"});
  add_text_windows(arguments, *checkpoint, options);
  ExecutorOptions executor_options;
  if (arguments.given("kv-type")) {
    executor_options.kv_type = *kv_type_from_name(arguments.text("kv-type"));
  }
  executor_options.context = context_of(options);
  const auto executor = open_device(arguments.text("device"))->load(checkpoint, executor_options);
  WrittenReference written;
  {
    const auto progress = terminal.progress("write reference", 0.0);
    double n = 0.0;
    written = write_reference(*executor, options, [&](std::string_view label) {
      stop_if_asked();
      progress->update(n++, label);
    });
  }
  if (terminal.json()) {
    Json json = Json::object();
    json.set("folder", written.folder);
    json.set("bytes", written.bytes);
    Json files = Json::array();
    for (const std::string& file : written.files) files.push(file);
    json.set("files", std::move(files));
    terminal.print(json.dump() + "\n");
  } else {
    terminal.print(written.folder + "\n");
  }
  return ExitCode::kDone;
}

ExitCode run(const Arguments& arguments, Terminal& terminal) {
  const std::vector<std::string> b = arguments.list("B");
  if (arguments.given("write-reference")) {
    if (!b.empty()) throw UsageError("--write-reference takes one model, not two sides");
    if (arguments.flag("dry-run")) {
      throw UsageError("--dry-run is for the comparison of two sides, not for --write-reference");
    }
    return run_write_reference(arguments, terminal);
  }
  if (arguments.flag("force")) throw UsageError("--force goes with --write-reference");
  if (b.empty()) {
    throw UsageError("verify-equivalence compares two sides: give B, or --write-reference DIR");
  }
  return run_comparison(arguments, terminal, b.front());
}

std::vector<Option> options() {
  return {
      {.name = "text",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Evaluation text for NLL and KLD, encoded by the tokenizers of both sides.",
       .group = "Input"},
      {.name = "token-ids",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Evaluation token ids instead of a text: a JSON list, a list of windows, or a "
               "safetensors file with token_ids.",
       .group = "Input"},
      {.name = "prompts",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Prompts for logits and greedy tokens: prompts.json or a JSON list of ids. "
               "Default: those of the bundle, cut from the text, or made from counters.",
       .group = "Input"},
      {.name = "tokenizer",
       .kind = ValueKind::kPath,
       .value_name = "PATH",
       .help = "tokenizer.json, a folder with one, or a GGUF file, instead of the sides' own.",
       .group = "Input"},
      {.name = "windows",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .help = "Evaluation windows; 0: all. Default: 16 of a text, all of a bundle.",
       .group = "Input",
       .minimum = 0},
      {.name = "window-length",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "1024",
       .help = "Tokens of a window, which is also the stride.",
       .group = "Input",
       .minimum = 2},
      {.name = "new-tokens",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "32",
       .help = "Greedy tokens a prompt, between two models. A bundle says how many it has.",
       .group = "Input",
       .minimum = 0},
      {.name = "kv-type",
       .value_name = "TYPE",
       .help = "Type of cached keys and values. Default: the bundle's, else f16.",
       .group = "Run",
       .choices = kKvTypeWords.list()},
      {.name = "device",
       .value_name = "DEVICE",
       .default_value = "cpu",
       .help = "cpu, or cuda[:N].",
       .group = "Run"},
      {.name = "skip",
       .value_name = "CHECK",
       .help = "Leaves one check out; may be given several times.",
       .group = "Run",
       .repeatable = true,
       .choices = {"weights", "tokenizer", "logits", "greedy", "nll", "self-equality"}},
      {.name = "dry-run",
       .kind = ValueKind::kFlag,
       .help = "Shows checks, tokens and memory from headers alone; runs nothing.",
       .group = "Run"},
      {.name = "policy",
       .value_name = "NAME",
       .default_value = "auto",
       .help = "bitwise: every bit must agree. tolerance: within the limits below. auto: bitwise "
               "where both sides store the weights alike, else the limits that fit the pair.",
       .group = "Policy",
       .choices = {"auto", "bitwise", "tolerance"}},
      {.name = "max-logit-difference",
       .kind = ValueKind::kNumber,
       .value_name = "X",
       .help = "Largest difference of any logit.",
       .group = "Policy",
       .minimum = 0},
      {.name = "max-delta-nll",
       .kind = ValueKind::kNumber,
       .value_name = "X",
       .help = "Largest difference of the mean NLL, nats a token.",
       .group = "Policy",
       .minimum = 0},
      {.name = "max-window-nll-difference",
       .kind = ValueKind::kNumber,
       .value_name = "X",
       .help = "Largest difference of the mean NLL of any one window, nats a token.",
       .group = "Policy",
       .minimum = 0},
      {.name = "max-kld",
       .kind = ValueKind::kNumber,
       .value_name = "X",
       .help = "Largest mean KLD(A || B), nats a token.",
       .group = "Policy",
       .minimum = 0},
      {.name = "json-out",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Writes the verdict as JSON to a file too; the input of assay report --verify.",
       .group = "Output",
       .writes = true,
       .file_at_end = true},
      {.name = "junit",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Writes one JUnit test case a check.",
       .group = "Output",
       .writes = true,
       .file_at_end = true},
      {.name = "write-reference",
       .kind = ValueKind::kPath,
       .value_name = "DIR",
       .help = "Compares nothing: writes what A computes for --prompts as a reference bundle.",
       .group = "Output",
       .writes = true},
      {.name = "force",
       .kind = ValueKind::kFlag,
       .help = "Replace an existing reference bundle.",
       .group = "Output"},
  };
}

}  // namespace

const Command& verify_equivalence_command() {
  static const Command command = {
      .name = "verify-equivalence",
      .brief = "Compare two models, or a model with reference results",
      .description =
          "Compares stored weights, tokenizers with chat templates, logits, greedy tokens and the "
          "NLL of a text, and each model with itself in other chunks and batches. A and B are "
          "Hugging Face folders, quantized "
          "folders, GGUF files or reference bundles, in any combination. Where logits differ, the "
          "first differing op, module and value are named. Exit code 0: equal within the stated "
          "policy; 1: a difference was found.",
      .positionals = {{.name = "A", .help = "the reference side"},
                      {.name = "B", .help = "the side that is judged", .optional = true}},
      .options = options(),
      .examples = {{"assay verify-equivalence model model.gguf",
                    "Is the conversion exact, bit for bit?"},
                   {"assay verify-equivalence model model-W4A16 --text eval.txt --max-kld 0.02",
                    "How much did quantization cost?"},
                   {"assay verify-equivalence model references/model --json",
                    "Against the results of another program."},
                   {"assay verify-equivalence model --write-reference out --prompts prompts.json",
                    "Writes results that other programs can be compared with."}},
      .run = run,
  };
  return command;
}

}  // namespace assay::cli
