#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct WrittenFile;

/// How much each input column of a linear matters: the mean of x² over calibration tokens.
struct Importance {
  std::vector<float> values;  // (n_matrices, columns)
  int64_t n_matrices = 1;     // experts that have values of their own
};

/// An importance matrix ("imatrix"): values by GGUF weight name. Source: llama.cpp's imatrix.cpp.
class ImportanceMatrix {
 public:
  /// Reads a GGUF imatrix or the older binary file (.dat), told apart by their first bytes. Every
  /// length is checked before use; values must be finite and not negative. FormatError.
  static ImportanceMatrix open(const std::string& path);

  const std::string& path() const { return path_; }
  /// Without folders: what quantize.imatrix.file of a GGUF file says.
  std::string file_name() const;
  const std::map<std::string, Importance, std::less<>>& entries() const { return entries_; }
  const Importance* find(std::string_view weight) const;
  const std::vector<std::string>& datasets() const { return datasets_; }
  int64_t chunk_count() const { return chunk_count_; }  // 0: not known

 private:
  void read_gguf();
  void read_legacy();
  void add(const std::string& weight, Importance importance);

  std::string path_;
  std::map<std::string, Importance, std::less<>> entries_;
  std::vector<std::string> datasets_;
  int64_t chunk_count_ = 0;
};

/// Sums of one weight, as an imatrix stores them: of one matrix, or of each of its experts.
struct ImportanceSums {
  std::vector<float> squares;     // (n_matrices, columns) Σ x² over the tokens
  std::vector<int64_t> n_tokens;  // (n_matrices) that reached each
};

struct ImportanceSource {
  std::string dataset;  // name of the calibration file
  int64_t chunk_count = 0;
  int64_t chunk_size = 0;
  std::map<std::string, ImportanceSums> weights;  // by GGUF weight name
};

/// Writes a GGUF imatrix with the keys and tensors of llama-imatrix.
void write_importance(const std::string& path, const ImportanceSource& source);

}  // namespace assay
