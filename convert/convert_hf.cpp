#include "convert/convert_hf.h"

#include <fmt/format.h>

#include "convert/conversion_table.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/new_folder.h"
#include "convert/core/overwrite.h"
#include "convert/core/paths.h"
#include "convert/core/units.h"
#include "convert/hf_export.h"
#include "convert/model_card.h"

namespace assay::cli {
namespace {

HfExportOptions options_of(const Arguments& arguments) {
  for (const char* name :
       {"imatrix", "pure", "tensor-type", "output-tensor-type", "token-embedding-type",
        "other-type", "name", "pre", "keep-split", "allow-requantize"}) {
    if (arguments.given(name)) {
      throw UsageError(fmt::format("--{} is for GGUF files; it does not go with --to hf", name));
    }
  }
  HfExportOptions options;
  const std::string type = arguments.text("type");
  if (type != "auto") {
    const std::optional<DType> dtype = dtype_from_name(type);
    if (!dtype || (*dtype != DType::kBF16 && *dtype != DType::kF16 && *dtype != DType::kF32)) {
      throw UsageError(fmt::format(
          "--type {}: a Hugging Face folder takes BF16, F16 or F32; auto is BF16", type));
    }
    options.dtype = *dtype;
  }
  if (arguments.given("split-max-size")) {
    options.max_shard_bytes = arguments.bytes("split-max-size");
  }
  options.card = parse_card_fields(arguments.list("card"));
  options.allow_infinite = arguments.flag("allow-infinite");
  return options;
}

std::string exactness(const HfTensor& tensor, bool written) {
  if (tensor.copied) return "copied";
  if (!written) return "computed";
  if (tensor.n_changed == 0) return "exact";
  return fmt::format("{} of {} values rounded", grouped_digits(tensor.n_changed),
                     grouped_digits(tensor.n_values));
}

std::string table_of(const HfExport& result, bool every_tensor, bool written) {
  ConversionTable table({"from", "to", "values"}, {}, every_tensor);
  for (const HfTensor& tensor : result.tensors()) {
    table.add(tensor.name, {tensor.source_type, std::string(dtype_name(tensor.dtype)),
                            exactness(tensor, written)});
  }
  return table.text();
}

Json report_of(const HfExport& result, const std::string& source, const std::string& out,
               const std::vector<WrittenFile>& written) {
  Json tensors = Json::array();
  for (const HfTensor& tensor : result.tensors()) {
    Json shape = Json::array();
    for (const int64_t dim : tensor.shape) shape.push(dim);
    tensors.push(Json::object()
                     .set("name", tensor.name)
                     .set("shape", std::move(shape))
                     .set("from", tensor.source_type)
                     .set("to", dtype_name(tensor.dtype))
                     .set("copied", tensor.copied)
                     .set("values_changed", tensor.n_changed));
  }
  Json files = Json::array();
  for (const WrittenFile& file : written) {
    files.push(
        Json::object().set("name", file.name).set("bytes", file.bytes).set("sha256", file.sha256));
  }
  Json warnings = Json::array();
  for (const std::string& warning : result.warnings()) warnings.push(warning);
  Json json = Json::object();
  json.set("source", source).set("format", "hf").set("bytes", result.weight_bytes());
  if (!written.empty()) json.set("path", out);
  return json.set("files", files).set("tensors", tensors).set("warnings", warnings);
}

}  // namespace

ExitCode run_convert_hf(const Arguments& arguments, Terminal& terminal) {
  const bool dry_run = arguments.flag("dry-run");
  const std::string out = without_trailing_slashes(arguments.text("out"));
  if (out.empty() && !dry_run) throw UsageError("--out FOLDER is missing; --dry-run goes without");
  const std::string model = arguments.list("MODEL").front();
  HfExport result(Checkpoint::open(model), options_of(arguments));
  for (const std::string& warning : result.warnings()) {
    terminal.log(LogLevel::kWarning, warning);
  }
  const bool every_tensor = arguments.flag("list-tensors");
  if (dry_run) {
    if (terminal.json()) {
      terminal.print(report_of(result, model, out, {}).dump() + "\n");
    } else {
      terminal.print(table_of(result, every_tensor, false));
      terminal.print(fmt::format("would write {} of weights and {}\n",
                                 bytes_text(result.weight_bytes()),
                                 fmt::join(result.companions(), ", ")));
    }
    return ExitCode::kDone;
  }
  require_free_folder_name(out, arguments.flag("force"), "model folder", {"config.json"});
  require_writable(existing_folder_above(out), result.weight_bytes());
  NewFolder folder(out);
  std::vector<WrittenFile> written;
  {
    const auto progress = terminal.progress("convert", static_cast<double>(result.weight_bytes()));
    written = result.write(folder.partial(), [&](uint64_t done, const std::string& name) {
      if (stop_requested()) throw StoppedError("stopped at \"" + name + "\"");
      progress->update(static_cast<double>(done), name);
    });
  }
  folder.publish();
  if (terminal.json()) {
    terminal.print(report_of(result, model, out, written).dump() + "\n");
    return ExitCode::kDone;
  }
  if (!terminal.quiet()) {
    terminal.print(table_of(result, every_tensor, true));
    for (const WrittenFile& file : written) {
      terminal.print(fmt::format("{} ({} bytes), SHA-256 {}\n", file.name,
                                 grouped_digits(static_cast<int64_t>(file.bytes)), file.sha256));
    }
  }
  terminal.print(out + "\n");
  return ExitCode::kDone;
}

}  // namespace assay::cli
