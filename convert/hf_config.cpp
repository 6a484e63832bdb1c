#include "convert/hf_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "convert/core/error.h"
#include "convert/families/config_writer.h"

namespace assay {
namespace {

/// The keys of the architecture that `config` leads to must be those of the file.
void check_config(const Checkpoint& checkpoint, const Json& config) {
  const Family& family = checkpoint.family();
  ModelSpec spec = family.read_config(config, generation_config_of_gguf(checkpoint));
  spec.n_prediction_blocks = checkpoint.spec().n_prediction_blocks;  // tensors count, not configs
  GgufMetadata from_spec, from_config;
  family.write_gguf_metadata(checkpoint.spec(), config, 0, from_spec);
  family.write_gguf_metadata(spec, config, 0, from_config);
  const auto fail = [&](const std::string& what) {
    throw FormatError(
        fmt::format("{}: the config.json that was made for it says {}; please report this file",
                    checkpoint.path(), what));
  };
  for (const auto& [key, value] : from_spec.items()) {
    const GgufValue* other = from_config.find(key);
    if (other == nullptr || !(*other == value)) fail("something else about \"" + key + "\"");
  }
  const std::vector<TensorEntry> a = family.tensors(checkpoint.spec()), b = family.tensors(spec);
  const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(),
                               [](const TensorEntry& x, const TensorEntry& y) {
                                 return x.hf_name == y.hf_name && x.shape == y.shape;
                               });
  if (!same) fail("other tensors");
  if (spec.stop_ids != checkpoint.spec().stop_ids || spec.bos_id != checkpoint.spec().bos_id) {
    fail("other special ids");
  }
}

}  // namespace

Json config_of_gguf(const Checkpoint& checkpoint, DType dtype) {
  const ModelSpec& spec = checkpoint.spec();
  ConfigMembers members;
  set_decoder_sizes(spec, dtype, members);
  checkpoint.family().write_config(spec, *checkpoint.gguf(), members);
  Json config = members.json();
  check_config(checkpoint, config);
  return config;
}

Json generation_config_of_gguf(const Checkpoint& checkpoint) {
  const ModelSpec& spec = checkpoint.spec();
  return Json::object()
      .set("bos_token_id", bos_json(spec))
      .set("eos_token_id", stop_ids_json(spec));
}

}  // namespace assay
