#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <memory>

#include "convert/commands.h"
#include "convert/conversion_table.h"
#include "convert/convert_hf.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/overwrite.h"
#include "convert/core/units.h"
#include "convert/file_summary.h"
#include "convert/gguf_export.h"
#include "convert/gguf_quantize.h"
#include "convert/model_card.h"
#include "convert/repack.h"

namespace assay::cli {
namespace {

std::vector<std::string> gguf_type_names() {
  std::vector<std::string> names = {"auto"};
  for (const WeightFormat* format : all_formats()) {
    if (format->gguf_type() && format->can_encode()) names.emplace_back(format->name());
  }
  return names;
}

/// Types, and mixes of types.
std::vector<std::string> gguf_type_and_mix_names() {
  std::vector<std::string> names = gguf_type_names();
  for (const QuantizationMix& mix : all_mixes()) {
    if (find_format(mix.name) == nullptr) names.emplace_back(mix.name);
  }
  return names;
}

const WeightFormat* type_option(const Arguments& arguments, std::string_view name) {
  const std::string text = arguments.text(name);
  return text.empty() || text == "auto" ? nullptr : find_format(text);
}

uint64_t split_size_of(const Arguments& arguments) {
  return arguments.given("split-max-size") ? arguments.bytes("split-max-size") : 0;
}

bool is_plain(const QuantizationMix& mix) {
  return find_format(mix.base_type)->fold() == Fold::kFloat;
}

/// What the options say about a mix. `mix` stays empty where --type names a plain type, or where
/// the linears are quantized already and --type is a type that their codes could move into.
MixOptions mix_of(const Arguments& arguments, bool plain_source) {
  const std::string type = arguments.text("type");
  MixOptions mix;
  mix.pure = arguments.flag("pure");
  mix.output_type = type_option(arguments, "output-tensor-type");
  mix.embedding_type = type_option(arguments, "token-embedding-type");
  for (const std::string& text : arguments.list("tensor-type")) {
    mix.overrides.push_back(parse_type_override(text));
  }
  const bool is_type = find_format(type) != nullptr;
  if (type != "auto" && (plain_source || !is_type)) mix.mix = find_mix(type);
  const bool has_rules = mix.pure || mix.output_type != nullptr || mix.embedding_type != nullptr ||
                         !mix.overrides.empty() || arguments.optional_text("imatrix").has_value();
  if (has_rules && mix.mix == nullptr) {
    throw UsageError(
        "--imatrix, --pure, --tensor-type, --output-tensor-type and "
        "--token-embedding-type need a --type such as Q4_K_M, and a source whose "
        "linears are not quantized yet");
  }
  const bool has_block_rules =
      mix.pure || !mix.overrides.empty() || arguments.optional_text("imatrix").has_value();
  if (has_block_rules && is_plain(*mix.mix)) {
    throw UsageError(
        "--type " + type +
        ": no rule chooses among plain types, so that --imatrix, --pure and "
        "--tensor-type would change nothing; name a type of blocks, or leave them out");
  }
  return mix;
}

std::shared_ptr<const ImportanceMatrix> importance_of(const Arguments& arguments) {
  const auto path = arguments.optional_text("imatrix");
  if (!path) return nullptr;
  return std::make_shared<const ImportanceMatrix>(ImportanceMatrix::open(*path));
}

std::unique_ptr<GgufPlan> plan_folder(const Arguments& arguments,
                                      std::shared_ptr<const Checkpoint> source) {
  GgufExportOptions options;
  const bool plain = source->kind() == CheckpointKind::kHuggingFace;
  options.mix = mix_of(arguments, plain);
  // Plain types of a plain folder: the file that llama.cpp's converter writes.
  const bool by_converter = options.mix.mix != nullptr && plain && is_plain(*options.mix.mix) &&
                            options.mix.output_type == nullptr &&
                            options.mix.embedding_type == nullptr;
  if (by_converter) options.mix.mix = nullptr;
  if (options.mix.mix == nullptr) options.type = type_option(arguments, "type");
  if (arguments.flag("keep-split")) {
    throw UsageError("--keep-split is for GGUF files in parts; a folder takes --split-max-size");
  }
  if (plain && arguments.given("other-type")) {
    throw UsageError("--other-type is for folders with quantized linears, and " + source->path() +
                     " has none; its types are those of --type, --token-embedding-type and "
                     "--output-tensor-type");
  }
  options.other_type = type_option(arguments, "other-type");
  options.importance = importance_of(arguments);
  options.split_max_bytes = split_size_of(arguments);
  options.allow_requantize = arguments.flag("allow-requantize");
  options.allow_infinite = arguments.flag("allow-infinite");
  options.name = arguments.optional_text("name");
  if (options.name && options.name->empty()) {
    throw UsageError("--name is empty; without it the file is named after the folder");
  }
  options.pre = arguments.optional_text("pre");
  return std::make_unique<GgufExport>(std::move(source), options);
}

bool is_gguf_file(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  const MappedFile file = MappedFile::open(path);
  return file.size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

std::unique_ptr<GgufPlan> plan_file(const Arguments& arguments, const std::string& path) {
  GgufQuantizeOptions options;
  options.mix = mix_of(arguments, true);
  if (options.mix.mix == nullptr) {
    throw UsageError(path +
                     ": is a GGUF file already; say with --type what its tensors are to "
                     "become, such as Q4_K_M");
  }
  for (const char* option : {"name", "pre", "other-type"}) {
    if (arguments.given(option)) {
      throw UsageError(std::string("--") + option +
                       " is for model folders; the keys of a GGUF file are taken over, and --type "
                       "is for all of its tensors");
    }
  }
  options.importance = importance_of(arguments);
  options.keep_split = arguments.flag("keep-split");
  options.split_max_bytes = split_size_of(arguments);
  if (options.keep_split && options.split_max_bytes > 0) {
    throw UsageError("--keep-split and --split-max-size exclude each other");
  }
  options.allow_requantize = arguments.flag("allow-requantize");
  options.allow_infinite = arguments.flag("allow-infinite");
  return std::make_unique<GgufQuantize>(std::make_shared<const GgufFile>(GgufFile::open(path)),
                                        options);
}

double target_bits(const ExportTensor& tensor) {
  return bits_per_weight(*tensor.format, 0, std::nullopt);
}

std::string exactness(const ExportTensor& tensor) {
  if (tensor.exact()) return "exact";
  if (tensor.n_changed > 0) {
    return fmt::format("{} of {} values changed", grouped_digits(tensor.n_changed),
                       grouped_digits(tensor.n_values));
  }
  return "not exact";
}

/// One row per kind of tensor; those that differ within a kind get rows of their own.
std::string table_of(const GgufPlan& plan, bool every_tensor) {
  ConversionTable table(
      {"from", "to", "bits", "how", "values"},
      {TextTable::Align::kLeft, TextTable::Align::kLeft, TextTable::Align::kRight}, every_tensor);
  for (const ExportTensor& tensor : plan.tensors()) {
    table.add(tensor.name, {tensor.source_type, std::string(tensor.format->name()),
                            fmt::format("{:.2f}", target_bits(tensor)),
                            std::string(export_method_name(tensor.method)), exactness(tensor)});
  }
  std::string text = table.text();
  for (const ExportTensor& tensor : plan.tensors()) {
    if (!tensor.note.empty()) text += fmt::format("  {}: {}\n", tensor.name, tensor.note);
  }
  return text;
}

Json tensor_json(const ExportTensor& tensor) {
  Json json = Json::object();
  json.set("name", tensor.name);
  if (!tensor.source_name.empty()) json.set("source", tensor.source_name);
  Json shape = Json::array();
  for (const int64_t dim : tensor.shape) shape.push(dim);
  json.set("shape", shape);
  json.set("from", tensor.source_type);
  json.set("to", tensor.format->name());
  json.set("how", export_method_name(tensor.method));
  json.set("exact", tensor.exact());
  json.set("bytes", tensor.bytes);
  if (!tensor.note.empty()) json.set("note", tensor.note);
  if (tensor.method == ExportMethod::kRound) {
    Json counts = Json::object();
    counts.set("infinite", tensor.narrowing.infinite);
    counts.set("zero", tensor.narrowing.zero);
    counts.set("subnormal", tensor.narrowing.subnormal);
    counts.set("nan", tensor.narrowing.nan);
    json.set("narrowing", counts);
  }
  if (tensor.n_changed > 0) json.set("values_changed", tensor.n_changed);
  return json;
}

/// Where the tensors come from.
struct Source {
  std::string path;
  std::string_view kind;
};

void set_hashes(Json& json, const WrittenGguf& written) {
  json.set("contents_sha256", written.contents_sha256());
  json.set("header_sha256", written.header_sha256);
  Json tensors = Json::object();
  for (const auto& [name, hash] : written.tensor_sha256) tensors.set(name, hash);
  json.set("tensor_sha256", std::move(tensors));
}

Json report_json(const GgufPlan& plan, const Source& source,
                 const std::vector<WrittenGguf>& written, const std::vector<std::string>& paths) {
  Json json = Json::object();
  json.set("source", source.path);
  json.set("source_kind", source.kind);
  json.set("format", "gguf");
  json.set("bytes", plan.file_bytes());
  if (written.size() == 1) {
    json.set("path", paths.front());
    set_hashes(json, written.front());
  } else if (!written.empty()) {
    Json parts = Json::array();
    for (size_t i = 0; i < written.size(); ++i) {
      Json part = Json::object();
      part.set("path", paths[i]).set("bytes", written[i].bytes);
      set_hashes(part, written[i]);
      parts.push(part);
    }
    json.set("parts", parts);
  }
  Json tensors = Json::array();
  for (const ExportTensor& tensor : plan.tensors()) tensors.push(tensor_json(tensor));
  json.set("tensors", tensors);
  Json warnings = Json::array();
  for (const std::string& warning : plan.warnings()) warnings.push(warning);
  json.set("warnings", warnings);
  return json;
}

/// What rounding to a narrower type did to values, in one line; empty if nothing.
std::string narrowing_line(const GgufPlan& plan) {
  NarrowingCounts total;
  for (const ExportTensor& tensor : plan.tensors()) {
    total.infinite += tensor.narrowing.infinite;
    total.zero += tensor.narrowing.zero;
    total.subnormal += tensor.narrowing.subnormal;
    total.nan += tensor.narrowing.nan;
  }
  if (total.infinite + total.zero + total.subnormal + total.nan == 0) return {};
  return fmt::format("rounding made {} values infinite, {} zero and {} subnormal; {} are NaN",
                     grouped_digits(total.infinite), grouped_digits(total.zero),
                     grouped_digits(total.subnormal), grouped_digits(total.nan));
}

/// Everything that can be known before long work: the folder, free space, what would be replaced.
void check_output(const std::string& path, uint64_t bytes, bool force) {
  require_free_file_name(path, force);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  require_writable(parent.empty() ? "." : parent.string(), bytes);
}

ExitCode show_plan(const GgufPlan& plan, const Source& source, const Arguments& arguments,
                   Terminal& terminal) {
  if (!plan.missing_importance().empty()) {
    terminal.log(LogLevel::kWarning, listed("these tensors need an importance matrix (--imatrix):",
                                            plan.missing_importance()));
  }
  if (terminal.json()) {
    terminal.print(report_json(plan, source, {}, {}).dump() + "\n");
    return ExitCode::kDone;
  }
  terminal.print(table_of(plan, arguments.flag("list-tensors")));
  const size_t n_files = plan.paths("x").size();
  terminal.print(fmt::format("would write {} ({} bytes{})\n", bytes_text(plan.file_bytes()),
                             grouped_digits(static_cast<int64_t>(plan.file_bytes())),
                             n_files > 1 ? fmt::format(", {} files", n_files) : ""));
  return ExitCode::kDone;
}

ExitCode run_convert(const Arguments& arguments, Terminal& terminal) {
  if (arguments.text("to") == "hf") return run_convert_hf(arguments, terminal);
  if (arguments.given("card")) throw UsageError("--card is for folders; it goes with --to hf");
  const bool dry_run = arguments.flag("dry-run");
  const std::string path = arguments.text("out");
  if (path.empty() && !dry_run) {
    throw UsageError("--out FILE is missing; --dry-run goes without");
  }
  const std::string model = arguments.list("MODEL").front();
  Source source{model, kGgufFormat.name};
  std::unique_ptr<GgufPlan> plan;
  if (is_gguf_file(model)) {
    plan = plan_file(arguments, model);
  } else {
    const auto checkpoint = Checkpoint::open(model);
    source.kind = checkpoint->format().name;
    plan = plan_folder(arguments, checkpoint);
  }
  for (const std::string& warning : plan->warnings()) terminal.log(LogLevel::kWarning, warning);
  if (const std::string line = narrowing_line(*plan); !line.empty()) {
    terminal.log(LogLevel::kWarning, line);
  }
  if (dry_run) return show_plan(*plan, source, arguments, terminal);
  const std::vector<std::string> paths = plan->paths(path);
  for (const std::string& part : paths) {
    check_output(part, plan->file_bytes(), arguments.flag("force"));
  }
  const auto progress = terminal.progress("convert", static_cast<double>(plan->file_bytes()));
  const std::vector<WrittenGguf> written =
      plan->write_parts(path, [&](uint64_t done, const std::string& name) {
        if (stop_requested()) throw StoppedError("stopped at \"" + name + "\"");
        progress->update(static_cast<double>(done), name);
      });
  if (terminal.json()) {
    terminal.print(report_json(*plan, source, written, paths).dump() + "\n");
    return ExitCode::kDone;
  }
  if (!terminal.quiet()) {
    terminal.print(table_of(*plan, arguments.flag("list-tensors")));
    for (const WrittenGguf& file : written) {
      terminal.print(
          fmt::format("{} ({} bytes), SHA-256 of the contents {}\n", bytes_text(file.bytes),
                      grouped_digits(static_cast<int64_t>(file.bytes)), file.contents_sha256()));
    }
  }
  for (const std::string& part : paths) terminal.print(part + "\n");
  return ExitCode::kDone;
}

}  // namespace

const Command& convert_command() {
  static const Command command = {
      .name = "convert",
      .brief = "Convert between model folders and GGUF, or quantize a GGUF file",
      .description =
          "Writes a GGUF file from a Hugging Face folder or from another GGUF file. Codes of a "
          "3-, 4- or 8-bit folder "
          "(compressed-tensors, GPTQ, AWQ) are moved as they are into the smallest type that keeps "
          "every value; a plain folder is written in its own type or encoded anew, with the "
          "types and bytes of llama-quantize. With --to hf it writes a plain Hugging Face folder "
          "of "
          "any of them: quantized weights as the numbers that they mean, GGUF files with the "
          "names, order and values that a conversion to GGUF began with. Nothing is lost in "
          "silence: what would change is refused, or counted.",
      .positionals = {{.name = "MODEL", .help = "Folder of the model, or a GGUF file."}},
      .options =
          {{.name = "to",
            .value_name = "FORMAT",
            .default_value = "gguf",
            .help = "Kind of result: a GGUF file, or a plain Hugging Face folder.",
            .group = "Output",
            .choices = {"gguf", "hf"}},
           {.name = "out",
            .short_name = 'o',
            .kind = ValueKind::kPath,
            .value_name = "FILE",
            .help = "File to write, or folder (--to hf).",
            .group = "Output",
            .writes = true},
           {.name = "force",
            .kind = ValueKind::kFlag,
            .help = "Replace an existing file or model folder.",
            .group = "Output"},
           {.name = "dry-run",
            .kind = ValueKind::kFlag,
            .help = "Say what would be written, with exact sizes, and write nothing.",
            .group = "Output"},
           {.name = "keep-split",
            .kind = ValueKind::kFlag,
            .help = "GGUF in parts: write the same parts.",
            .group = "Output"},
           {.name = "split-max-size",
            .kind = ValueKind::kBytes,
            .value_name = "SIZE",
            .help = "Begin a new file where the tensors of one would pass this size, such as 4GB.",
            .group = "Output"},
           {.name = "card",
            .value_name = "NAME=VALUE",
            .help = fmt::format("With --to hf: field of the model card's head: {}.",
                                fmt::join(card_field_names(), ", ")),
            .group = "Output",
            .repeatable = true},
           {.name = "list-tensors",
            .kind = ValueKind::kFlag,
            .help = "One line per tensor instead of one per kind.",
            .group = "Output"},
           {.name = "type",
            .value_name = "TYPE",
            .default_value = "auto",
            .help = "Type of the matrices, or a mix of types by the rules of llama-quantize "
                    "(Q4_K_M; Q4_K means the same); auto keeps the type of a plain folder and "
                    "takes the smallest exact one for quantized linears; with --to hf it is BF16.",
            .group = "Types",
            .choices = gguf_type_and_mix_names()},
           {.name = "imatrix",
            .kind = ValueKind::kPath,
            .value_name = "FILE",
            .help = "Importance matrix (GGUF or .dat) that says which columns matter.",
            .group = "Types"},
           {.name = "pure",
            .kind = ValueKind::kFlag,
            .help = "One type for all matrices, without the rules of the mix.",
            .group = "Types"},
           {.name = "tensor-type",
            .value_name = "REGEX=TYPE",
            .help = "Type of the tensors whose GGUF name matches; the first that matches wins.",
            .group = "Types",
            .repeatable = true},
           {.name = "output-tensor-type",
            .value_name = "TYPE",
            .default_value = "auto",
            .help = "Type of the head (output.weight).",
            .group = "Types",
            .choices = gguf_type_names()},
           {.name = "token-embedding-type",
            .value_name = "TYPE",
            .default_value = "auto",
            .help = "Type of the embedding.",
            .group = "Types",
            .choices = gguf_type_names()},
           {.name = "other-type",
            .value_name = "TYPE",
            .default_value = "auto",
            .help = "Quantized folders: type of the embedding, the head and linears that are not "
                    "quantized; auto keeps theirs.",
            .group = "Types",
            .choices = gguf_type_names()},
           {.name = "allow-requantize",
            .kind = ValueKind::kFlag,
            .help = "Let quantized linears lose something in --type; the table says how much.",
            .group = "Types"},
           {.name = "allow-infinite",
            .kind = ValueKind::kFlag,
            .help = "Let values become infinite in a narrower type, or stay NaN.",
            .group = "Types"},
           {.name = "name",
            .value_name = "TEXT",
            .help = "general.name of the file, instead of the folder's name.",
            .group = "Metadata"},
           {.name = "pre",
            .value_name = "NAME",
            .help = "tokenizer.ggml.pre, for tokenizers whose split rule GGUF has no name for.",
            .group = "Metadata",
            .expert = true}},
      .examples = {{"assay convert model-W4A16 --out model.gguf",
                    "Move the codes of a quantized folder, exactly."},
                   {"assay convert model --type Q8_0 --out model-Q8_0.gguf",
                    "Encode a 16-bit folder in 8 bits."},
                   {"assay convert model --type Q4_K_M --imatrix model.imatrix.gguf --out "
                    "model-Q4_K_M.gguf",
                    "The mix of llama-quantize, with an importance matrix."},
                   {"assay convert model-BF16.gguf --type IQ4_XS --tensor-type 'attn_v=Q8_0' "
                    "--dry-run",
                    "See the types and the size that a GGUF file would get."},
                   {"assay convert model.gguf --to hf --out model",
                    "A Hugging Face folder of a GGUF file."},
                   {"assay convert model-W4A16 --dry-run --list-tensors",
                    "See for each tensor what would happen."}},
      .run = run_convert,
  };
  return command;
}

}  // namespace assay::cli
