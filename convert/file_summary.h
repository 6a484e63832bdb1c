#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "convert/core/json.h"
#include "convert/core/read_progress.h"
#include "convert/core/tensor.h"
#include "convert/gguf.h"
#include "convert/safetensors.h"

namespace assay {

// What a summary says of files and of the tensors in them, whatever model they are.

/// One tensor as it lies in a file.
struct FileTensor {
  std::string name;
  std::string type;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// Those of a folder, of one file, or of a GGUF model; null for what there is not.
std::vector<FileTensor> tensors_of(const SafetensorsModel* folder, const SafetensorsFile* single,
                                   const GgufFile* gguf);
/// Name, type, shape, bytes of each, and its SHA-256.
Json tensor_list(const std::vector<FileTensor>& tensors, bool hashes, const ReadProgress& progress);
/// Files of a folder (not of its subfolders), all parts of a GGUF model, or the one file, by name.
/// With the list of tensors, which then has hashes, there are hashes; of a GGUF file those that
/// write_gguf tells, too.
Json file_list(const std::string& path, const GgufFile* gguf, const Json* tensors,
               const ReadProgress& progress);
/// `weights` and `weight_bytes` for files whose family is not known: by name and type alone.
void add_unknown_weights(const std::vector<FileTensor>& tensors, Json& summary);

Json shape_json(const Shape& shape);
/// "blk.3.attn_q.weight" → "blk.*.attn_q.weight": one name for a tensor of all layers.
std::string name_without_layer(const std::string& name);

}  // namespace assay
