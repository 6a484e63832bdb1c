#include "quantizer/manifest.h"

#include <algorithm>
#include <map>
#include <string>

#include "convert/core/version.h"
#include "runtime/ops/rope.h"

namespace assay {

Json make_manifest(const RunPlan& plan, const OutputContents& contents,
                   const std::vector<TensorSource>& tensors,
                   const std::vector<WrittenFile>& written) {
  std::map<std::string, std::string> hashes;
  std::map<std::string, Json> files;
  for (const WrittenFile& file : written) {
    files[file.name] = Json::object().set("bytes", file.bytes).set("sha256", file.sha256);
    for (const auto& [name, hash] : file.tensor_sha256) hashes[name] = hash;
  }
  std::map<std::string, Json> entries;
  for (const TensorSource& tensor : tensors) {
    Json shape = Json::array();
    for (const int64_t size : tensor.shape) shape.push(size);
    entries[tensor.name] = Json::object()
                               .set("dtype", dtype_name(tensor.dtype))
                               .set("shape", shape)
                               .set("sha256", hashes[tensor.name]);
  }
  Json ropes = Json::array();
  for (const RopeSpec& rope : plan.program.ropes) {
    ropes.push(Json::object()
                   .set("inv_freq_sha256", rope_inv_freq_sha256(rope))
                   .set("table_sha256", rope_table_sha256(rope)));
  }
  const auto object_of = [](std::map<std::string, Json>& members) {
    Json::Object object;
    for (auto& [name, value] : members) object.emplace_back(name, std::move(value));
    return Json(std::move(object));
  };
  Json manifest = Json::object();
  manifest.set("assay", Json::object().set("version", version()).set("arithmetic", kArithmetic))
      .set("fingerprint", contents.fingerprint)
      .set("calibration", contents.calibration)
      .set("rope", ropes)
      .set("tensors", object_of(entries))
      .set("files", object_of(files));
  return manifest;
}

}  // namespace assay
