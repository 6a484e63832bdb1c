#include "convert/manifest_check.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/core/sha256.h"
#include "convert/core/sha256_streams.h"

namespace assay {
namespace {

const Json& member(const Json& object, std::string_view name, const std::string& where) {
  const Json* found = object.is_object() ? object.find(name) : nullptr;
  if (found == nullptr) {
    throw FormatError(where + ": \"" + std::string(name) + "\" is missing");
  }
  return *found;
}

std::string text(const Json& object, std::string_view name, const std::string& where) {
  const Json& value = member(object, name, where);
  if (!value.is_string()) {
    throw FormatError(where + ": \"" + std::string(name) + "\" is no text");
  }
  return value.as_string();
}

std::string differs(const std::string& what, const std::string& found,
                    const std::string& expected) {
  return what + ": SHA-256 " + found + ", " + std::string(kManifestName) + " says " + expected;
}

void compare_tensors(const Json& listed, const SafetensorsModel& model, const std::string& where,
                     const ReadProgress& progress, std::vector<std::string>& faults) {
  std::vector<std::pair<std::string, std::string>> expected;  // name, hash
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& [name, entry] : listed.as_object()) {
    const std::string hash = text(entry, "sha256", where + ": tensor \"" + name + "\"");
    const SafetensorsEntry* tensor = model.find(name);
    if (tensor == nullptr) {
      faults.push_back("tensor \"" + name + "\" is missing, " + std::string(kManifestName) +
                       " lists it");
      continue;
    }
    expected.emplace_back(name, hash);
    bytes.push_back(tensor->view.bytes);
  }
  const std::vector<std::string> found = sha256_of_all(bytes, [&](size_t i) {
    if (progress) progress(expected[i].first);
  });
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& [name, hash] = expected[i];
    if (found[i] != hash) faults.push_back(differs("tensor \"" + name + "\"", found[i], hash));
  }
  for (const std::string& name : model.names()) {
    if (listed.find(name) != nullptr) continue;
    faults.push_back("tensor \"" + name + "\" is not in " + std::string(kManifestName));
  }
}

void compare_files(const Json& listed, const std::string& folder, const std::string& where,
                   const ReadProgress& progress, std::vector<std::string>& faults) {
  for (const auto& item : listed.as_object()) {
    const std::string& name = item.first;
    const Json& entry = item.second;
    const std::string expected = text(entry, "sha256", where + ": file \"" + name + "\"");
    const std::string path = contained_path(folder, name, where);
    if (!file_exists(path)) {
      faults.push_back("file \"" + name + "\" is missing, " + std::string(kManifestName) +
                       " lists it");
      continue;
    }
    const std::string found = sha256_of_file(path, [&] {
      if (progress) progress(name);
    });
    if (found != expected) faults.push_back(differs("file \"" + name + "\"", found, expected));
  }
}

}  // namespace

std::optional<std::vector<std::string>> manifest_faults(const std::string& folder,
                                                        const SafetensorsModel& model,
                                                        const ReadProgress& progress) {
  const std::string path = folder + "/" + std::string(kManifestName);
  if (!file_exists(path)) return std::nullopt;
  std::vector<std::string> faults;
  try {
    const Json manifest = read_json_file(path);
    for (const std::string_view list : {"tensors", "files"}) {
      if (!member(manifest, list, path).is_object()) {
        throw FormatError(path + ": \"" + std::string(list) + "\" is no object");
      }
    }
    compare_tensors(manifest.at("tensors"), model, path, progress, faults);
    compare_files(manifest.at("files"), folder, path, progress, faults);
  } catch (const FormatError& error) {
    faults.emplace_back(error.what());
  }
  return faults;
}

}  // namespace assay
