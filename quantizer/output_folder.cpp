#include "quantizer/output_folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "convert/companions.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/new_folder.h"
#include "convert/core/version.h"
#include "convert/model_card.h"
#include "quantizer/config_patch.h"
#include "quantizer/manifest.h"
#include "quantizer/result_card.h"

namespace assay {
namespace {

Json quantization_config(const RunPlan& plan) {
  return plan.layout->config(plan.quantize, {.ignore = plan.ignore, .program_version = version()});
}

std::string side_file_text(const RunPlan& plan) { return quantization_config(plan).dump(2) + "\n"; }

// An expert that stays as it is, out of a tensor of all experts.
std::optional<TensorView> expert_rows(const RunPlan& plan, const TensorSource& tensor) {
  for (const TensorEntry& entry : plan.checkpoint->tensors()) {
    if (entry.expert < 0 || entry.hf_name != tensor.name) continue;
    return TensorView{tensor.dtype, tensor.shape, plan.checkpoint->matrix(entry).view.data};
  }
  return std::nullopt;
}

// Tensors of the result with their bytes: solved ones from `quantized`, all others from the model.
std::vector<TensorSource> sources(const RunPlan& plan,
                                  const std::vector<SafetensorsFile>& quantized) {
  std::vector<TensorSource> tensors = output_tensors(plan);
  for (TensorSource& tensor : tensors) {
    const SafetensorsEntry* entry = nullptr;
    for (const SafetensorsFile& file : quantized) {
      if (entry == nullptr) entry = file.find(tensor.name);
    }
    if (entry == nullptr) entry = plan.checkpoint->safetensors()->find(tensor.name);
    if (entry == nullptr) {
      if (const std::optional<TensorView> rows = expert_rows(plan, tensor)) {
        tensor.write = source_of(tensor.name, *rows).write;
        continue;
      }
    }
    if (entry == nullptr || entry->view.dtype != tensor.dtype ||
        entry->view.shape != tensor.shape) {
      throw FormatError(tensor.name + ": the state of the run does not hold this tensor as " +
                        std::string(dtype_name(tensor.dtype)) + " " + to_string(tensor.shape) +
                        "; start again with --force");
    }
    tensor.write = source_of(tensor.name, entry->view).write;
  }
  return tensors;
}

std::vector<OutputFile> listing(const std::vector<WrittenFile>& written) {
  std::vector<OutputFile> files;
  for (const WrittenFile& file : written) files.push_back({file.name, file.bytes, file.sha256});
  std::sort(files.begin(), files.end(),
            [](const OutputFile& a, const OutputFile& b) { return a.name < b.name; });
  return files;
}

}  // namespace

std::string output_config(const RunPlan& plan) {
  const std::string path = plan.checkpoint->path() + "/config.json";
  return set_json_member(read_text_file(path), "quantization_config", quantization_config(plan),
                         path);
}

std::vector<OutputFile> write_output_folder(const std::string& out, const RunPlan& plan,
                                            const std::vector<SafetensorsFile>& quantized,
                                            const OutputContents& contents,
                                            uint64_t max_shard_bytes,
                                            const std::function<void(double)>& progress) {
  NewFolder folder(out);
  const std::string& partial = folder.partial();
  std::vector<TensorSource> tensors = sources(plan, quantized);
  uint64_t total = 1;
  for (const TensorSource& tensor : tensors) {
    total += static_cast<uint64_t>(n_elements(tensor.shape)) * dtype_bytes(tensor.dtype);
  }
  uint64_t done = 0;
  for (TensorSource& tensor : tensors) {
    tensor.write = [&, write = std::move(tensor.write)](const auto& sink) {
      write([&](std::span<const std::byte> piece) {
        sink(piece);
        done += piece.size();
        if (progress) progress(static_cast<double>(done) / static_cast<double>(total));
      });
    };
  }
  std::vector<WrittenFile> written =
      write_safetensors_model(partial, std::move(tensors), max_shard_bytes);
  const std::string card = result_card(plan, contents, written);
  const std::string model = plan.checkpoint->path();
  for (const std::string& name : companion_files(model)) {
    written.push_back(copy_companion(model, partial, name));
  }
  written.push_back(write_companion(partial, std::string(kModelCardName), card));
  written.push_back(write_companion(partial, "config.json", output_config(plan)));
  if (!plan.layout->side_file.empty()) {
    written.push_back(
        write_companion(partial, std::string(plan.layout->side_file), side_file_text(plan)));
  }
  const Json manifest = make_manifest(plan, contents, output_tensors(plan), written);
  written.push_back(write_companion(partial, std::string(kManifestName), manifest.dump() + "\n"));
  folder.publish();
  return listing(written);
}

std::vector<OutputFile> plan_output_folder(const RunPlan& plan, const OutputContents& contents,
                                           uint64_t max_shard_bytes) {
  const std::string no_hash(64, '0');
  std::vector<WrittenFile> planned = plan_safetensors_model(output_tensors(plan), max_shard_bytes);
  for (WrittenFile& file : planned) file.sha256 = no_hash;
  planned.push_back(
      {std::string(kModelCardName), result_card(plan, contents, planned).size(), no_hash, {}});
  const std::string model = plan.checkpoint->path();
  for (const std::string& name : companion_files(model)) {
    planned.push_back({name, std::filesystem::file_size(model + "/" + name), no_hash, {}});
  }
  planned.push_back({"config.json", output_config(plan).size(), no_hash, {}});
  if (!plan.layout->side_file.empty()) {
    planned.push_back(
        {std::string(plan.layout->side_file), side_file_text(plan).size(), no_hash, {}});
  }
  for (WrittenFile& file : planned) {
    file.sha256 = no_hash;
    for (auto& [name, hash] : file.tensor_sha256) hash = no_hash;
  }
  const Json manifest = make_manifest(plan, contents, output_tensors(plan), planned);
  planned.push_back({std::string(kManifestName), manifest.dump().size() + 1, no_hash, {}});
  return listing(planned);
}

}  // namespace assay
