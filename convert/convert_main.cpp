#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "convert/cli/text_table.h"
#include "convert/commands.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/units.h"
#include "convert/gguf_export.h"
#include "convert/model_summary.h"
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

const WeightFormat* type_option(const Arguments& arguments, std::string_view name) {
  const std::string text = arguments.text(name);
  return text.empty() || text == "auto" ? nullptr : find_format(text);
}

GgufExportOptions options_of(const Arguments& arguments) {
  GgufExportOptions options;
  options.type = type_option(arguments, "type");
  options.other_type = type_option(arguments, "other-type");
  options.allow_requantize = arguments.flag("allow-requantize");
  options.allow_infinite = arguments.flag("allow-infinite");
  options.name = arguments.optional_text("name");
  options.pre = arguments.optional_text("pre");
  return options;
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
std::string table_of(const GgufExport& plan, bool every_tensor) {
  TextTable table({"tensor", "n", "from", "to", "bits", "how", "values"},
                  {TextTable::Align::kLeft, TextTable::Align::kRight, TextTable::Align::kLeft,
                   TextTable::Align::kLeft, TextTable::Align::kRight});
  std::vector<std::vector<std::string>> rows;
  std::map<std::vector<std::string>, size_t> row_of;
  std::vector<int64_t> counts;
  for (const ExportTensor& tensor : plan.tensors()) {
    std::vector<std::string> row = {every_tensor ? tensor.name : name_without_layer(tensor.name),
                                    "",
                                    tensor.source_type,
                                    std::string(tensor.format->name()),
                                    fmt::format("{:.2f}", target_bits(tensor)),
                                    std::string(export_method_name(tensor.method)),
                                    exactness(tensor)};
    const auto [found, is_new] = row_of.emplace(row, rows.size());
    if (is_new) {
      rows.push_back(row);
      counts.push_back(0);
    }
    ++counts[found->second];
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i][1] = std::to_string(counts[i]);
    table.add(rows[i]);
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

Json report_json(const GgufExport& plan, const Checkpoint& source, const WrittenFile* written,
                 const std::string& path) {
  Json json = Json::object();
  json.set("source", source.path());
  json.set("source_kind", checkpoint_kind_name(source.kind()));
  json.set("format", "gguf");
  json.set("bytes", plan.file_bytes());
  if (written != nullptr) {
    json.set("path", path);
    json.set("sha256", written->sha256);
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
std::string narrowing_line(const GgufExport& plan) {
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
  namespace fs = std::filesystem;
  if (fs::is_directory(path)) {
    throw UsageError(path + ": is a folder; --out takes the name of the file to write");
  }
  if (file_exists(path) && !force) {
    throw UsageError(path + ": exists already; choose another --out or replace it with --force");
  }
  const fs::path parent = fs::path(path).parent_path();
  require_writable(parent.empty() ? "." : parent.string(), bytes);
}

ExitCode run_convert(const Arguments& arguments, Terminal& terminal) {
  const bool dry_run = arguments.flag("dry-run");
  const std::string path = arguments.text("out");
  if (path.empty() && !dry_run) {
    throw UsageError("--out FILE is missing; --dry-run goes without");
  }
  const auto source = Checkpoint::open(arguments.list("MODEL").front());
  GgufExport plan(source, options_of(arguments));
  for (const std::string& warning : plan.warnings()) terminal.log(LogLevel::kWarning, warning);
  if (const std::string line = narrowing_line(plan); !line.empty()) {
    terminal.log(LogLevel::kWarning, line);
  }
  if (dry_run) {
    if (terminal.json()) {
      terminal.print(report_json(plan, *source, nullptr, path).dump() + "\n");
    } else {
      terminal.print(table_of(plan, arguments.flag("list-tensors")));
      terminal.print(fmt::format("would write {} ({} bytes)\n", bytes_text(plan.file_bytes()),
                                 grouped_digits(static_cast<int64_t>(plan.file_bytes()))));
    }
    return ExitCode::kDone;
  }
  check_output(path, plan.file_bytes(), arguments.flag("force"));
  const auto progress = terminal.progress("convert", static_cast<double>(plan.file_bytes()));
  const WrittenFile written = plan.write(path, [&](uint64_t done, const std::string& name) {
    if (stop_requested())
      throw StoppedError("stopped before \"" + name + "\"; nothing was written");
    progress->update(static_cast<double>(done), name);
  });
  if (terminal.json()) {
    terminal.print(report_json(plan, *source, &written, path).dump() + "\n");
    return ExitCode::kDone;
  }
  if (!terminal.quiet()) {
    terminal.print(table_of(plan, arguments.flag("list-tensors")));
    terminal.print(fmt::format("{} ({} bytes), SHA-256 {}\n", bytes_text(written.bytes),
                               grouped_digits(static_cast<int64_t>(written.bytes)),
                               written.sha256));
  }
  terminal.print(path + "\n");
  return ExitCode::kDone;
}

}  // namespace

const Command& convert_command() {
  static const Command command = {
      .name = "convert",
      .brief = "Convert a model folder to GGUF",
      .description =
          "Writes a GGUF file from a Hugging Face folder. Codes of a 4-bit or 8-bit folder "
          "(compressed-tensors, GPTQ) are moved as they are into the smallest type that keeps "
          "every value; a plain folder is written in its own type or encoded anew. Nothing is "
          "lost in silence: what would change is refused, or counted where it is allowed.",
      .positionals = {{.name = "MODEL", .help = "Folder of the model."}},
      .options =
          {{.name = "to",
            .value_name = "FORMAT",
            .default_value = "gguf",
            .help = "Kind of file.",
            .group = "Output",
            .choices = {"gguf"}},
           {.name = "out",
            .short_name = 'o',
            .kind = ValueKind::kPath,
            .value_name = "FILE",
            .help = "File to write.",
            .group = "Output"},
           {.name = "force",
            .kind = ValueKind::kFlag,
            .help = "Replace an existing file.",
            .group = "Output"},
           {.name = "dry-run",
            .kind = ValueKind::kFlag,
            .help = "Say what would be written, with exact sizes, and write nothing.",
            .group = "Output"},
           {.name = "list-tensors",
            .kind = ValueKind::kFlag,
            .help = "One line per tensor instead of one per kind.",
            .group = "Output"},
           {.name = "type",
            .value_name = "TYPE",
            .default_value = "auto",
            .help = "Type of the matrices; auto keeps the type of a plain folder and takes the "
                    "smallest exact one for quantized linears.",
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
                   {"assay convert model-W4A16 --dry-run --list-tensors",
                    "See for each tensor what would happen."}},
      .run = run_convert,
  };
  return command;
}

}  // namespace assay::cli
