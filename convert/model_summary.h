#pragma once

#include <string>

#include "convert/core/json.h"
#include "convert/core/read_progress.h"

namespace assay {

struct SummaryOptions {
  bool list_tensors = false;  // one entry per tensor of the files
  bool hashes = false;        // SHA-256 of every tensor and file; implies list_tensors
  /// Read every value and scale: NaN, infinity, negative scales; compare with the manifest, if the
  /// folder has one.
  bool check_values = false;
  ReadProgress progress = {};  // of hashes and check_values
};

/// What lies at `path` (a Hugging Face, W4A16 or GPTQ folder, a GGUF or safetensors file) as one
/// JSON object: kind, family, shapes, rope, tokenizer, weights by kind of tensor with types and
/// bits, the engines that load it, metadata, files, `notes` (nothing that is wrong), `problems`. A
/// model of a family that is not implemented is still listed, with the reason under `unsupported`;
/// so is one whose parts do not fit together, with what is wrong among the problems and `readable`
/// false. Throws FormatError and FileError for files whose tensors cannot be listed.
Json summarize_model(const std::string& path, const SummaryOptions& options);

/// The same for people: a page of text.
std::string summary_text(const Json& summary);

}  // namespace assay
