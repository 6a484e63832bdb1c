#pragma once

#include <string>

namespace assay {

/// "out/" and "out" are one folder.
inline std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace assay
