#include "convert/families/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "convert/core/error.h"
#include "convert/core/math64.h"
#include "convert/families/bounds.h"
#include "convert/families/decoder_gguf.h"
#include "convert/formats/format.h"

namespace assay {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

/// m(s, k) of yarn.
double yarn_mscale(double factor, double k) {
  return factor <= 1.0 ? 1.0 : 0.1 * k * log64(factor) + 1.0;
}

/// The dictionary that holds the scaling: `rope_scaling` if it is there, else `rope_parameters`.
const Json* scaling_of(const ConfigReader& config, std::string& name) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const Json* found = config.find(key)) {
      name = key;
      return found;
    }
  }
  return nullptr;
}

int64_t original_context(const ConfigReader& config, const ConfigReader& scaling,
                         int64_t context_length) {
  const char* key = "original_max_position_embeddings";
  if (config.has(key)) return config.integer(key, 1, kMaxContext);
  return scaling.integer_or(key, 1, kMaxContext, context_length);
}

void read_llama3(const ConfigReader& config, const ConfigReader& scaling, int64_t context_length,
                 RopeSpec& rope) {
  rope.kind = RopeSpec::Kind::kLlama3;
  rope.factor = scaling.number("factor", 1.0, kMaxFactor);
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, kMaxFactor);
  rope.original_context = original_context(config, scaling, context_length);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.fail("high_freq_factor",
                 fmt::format("more than low_freq_factor ({})", rope.low_freq_factor));
  }
}

void read_yarn(const ConfigReader& config, const ConfigReader& scaling, int64_t context_length,
               RopeSpec& rope) {
  rope.kind = RopeSpec::Kind::kYarn;
  rope.factor = scaling.number("factor", 1.0, kMaxFactor);
  rope.beta_fast = scaling.number_or("beta_fast", 1e-6, kMaxFactor, 32.0);
  rope.beta_slow = scaling.number_or("beta_slow", 1e-6, kMaxFactor, 1.0);
  rope.truncate = scaling.boolean_or("truncate", true);
  rope.original_context = original_context(config, scaling, context_length);
  const double mscale = scaling.number_or("mscale", 0.0, kMaxFactor, 0.0);
  const double mscale_all_dim = scaling.number_or("mscale_all_dim", 0.0, kMaxFactor, 0.0);
  if (scaling.has("attention_factor")) {
    rope.attention_factor = scaling.number("attention_factor", 1e-6, kMaxFactor);
  } else if (mscale != 0.0 && mscale_all_dim != 0.0) {
    rope.attention_factor =
        yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all_dim);
  } else {
    rope.attention_factor = yarn_mscale(rope.factor, 1.0);
  }
}

}  // namespace

double default_yarn_attention_factor(double factor) { return yarn_mscale(factor, 1.0); }

namespace {

/// Kind and parameters of one dictionary; `rope` has the values where it says nothing.
RopeSpec read_scaling(const ConfigReader& config, const ConfigReader& scaling,
                      int64_t context_length, RopeSpec rope) {
  rope.theta = scaling.number_or("rope_theta", 1e-6, kMaxTheta, rope.theta);
  const std::string type =
      scaling.has("rope_type") ? scaling.text("rope_type") : scaling.text_or("type", "default");
  if (type == "default") {
    rope.kind = RopeSpec::Kind::kDefault;
  } else if (type == "linear") {
    rope.kind = RopeSpec::Kind::kLinear;
    rope.factor = scaling.number("factor", 1e-6, kMaxFactor);
  } else if (type == "llama3") {
    read_llama3(config, scaling, context_length, rope);
  } else if (type == "yarn") {
    read_yarn(config, scaling, context_length, rope);
  } else {
    throw UnsupportedError(
        fmt::format("{}: rope type \"{}\" is not supported; default, linear, llama3 and yarn are",
                    scaling.source(), type));
  }
  return rope;
}

int rotary_dims_of(const ConfigReader& reader, int head_dim, double partial) {
  const int dims = static_cast<int>(head_dim * partial);
  if (dims < 2 || dims % 2 != 0) {
    reader.fail("partial_rotary_factor",
                fmt::format("a share of the {} values of a head that is even", head_dim));
  }
  return dims;
}

}  // namespace

RopeSpec read_partial_rope_config(const ConfigReader& config, int head_dim, int64_t context_length,
                                  double default_partial) {
  RopeSpec rope;
  rope.theta = config.number_or("rope_theta", 1e-6, kMaxTheta, 10000.0);
  double partial = config.number_or("partial_rotary_factor", 0.0, 1.0, default_partial);
  std::string name;
  const Json* found = scaling_of(config, name);
  if (found == nullptr) {
    rope.rotary_dims = rotary_dims_of(config, head_dim, partial);
    return rope;
  }
  const ConfigReader scaling(*found, config.source() + ": " + name);
  if (scaling.has("partial_rotary_factor")) {
    const double own = scaling.number("partial_rotary_factor", 0.0, 1.0);
    if (config.has("partial_rotary_factor") && own != partial) {
      scaling.fail("partial_rotary_factor", fmt::format("{}, as beside {}", partial, name));
    }
    partial = own;
  }
  rope.rotary_dims = rotary_dims_of(scaling, head_dim, partial);
  return read_scaling(config, scaling, context_length, rope);
}

RopeSpec read_rope_config(const ConfigReader& config, int rotary_dims, int64_t context_length) {
  const RopeSpec rope = read_partial_rope_config(config, rotary_dims, context_length, 1.0);
  if (rope.rotary_dims != rotary_dims) {
    throw UnsupportedError(config.source() + ": partial_rotary_factor is not supported here");
  }
  return rope;
}

RopeSpec read_layer_rope_config(const ConfigReader& config, std::string_view layer_type,
                                int head_dim, int64_t context_length,
                                const LayerRopeDefaults& defaults) {
  RopeSpec rope;
  rope.rotary_dims = head_dim;
  rope.theta = defaults.theta;
  if (!defaults.theta_key.empty()) {
    rope.theta = config.number_or(defaults.theta_key, 1e-6, kMaxTheta, defaults.theta);
  }
  const Json nothing = Json::object();
  const Json* all = config.find("rope_parameters");
  const ConfigReader types(all == nullptr ? nothing : *all, config.source() + ": rope_parameters");
  if (types.has("rope_type")) types.fail("rope_type", "one object per layer type instead");
  const Json* own = types.find(layer_type);
  std::string name = "rope_parameters: " + std::string(layer_type);
  if (own == nullptr && !defaults.scaling_key.empty()) {
    own = config.find(defaults.scaling_key);
    name = defaults.scaling_key;
  }
  const ConfigReader scaling(own == nullptr ? nothing : *own, config.source() + ": " + name);
  const std::string type =
      scaling.text_or("rope_type", defaults.proportional ? "proportional" : "default");
  if (type != "proportional") return read_scaling(config, scaling, context_length, rope);
  rope.kind = RopeSpec::Kind::kProportional;
  rope.theta = scaling.number_or("rope_theta", 1e-6, kMaxTheta, rope.theta);
  rope.factor = scaling.number_or("factor", 1e-6, kMaxFactor, 1.0);
  const double partial = scaling.number_or("partial_rotary_factor", 0.0, 1.0, defaults.partial);
  rope.n_rotated_pairs = static_cast<int>(head_dim * partial) / 2;
  return rope;
}

void write_rope_scaling_gguf(const RopeSpec& rope, std::string_view architecture,
                             GgufMetadata& metadata) {
  const std::string prefix = std::string(architecture) + ".rope.scaling.";
  if (rope.kind == RopeSpec::Kind::kLinear) {
    metadata.set(prefix + "type", std::string("linear"));
    metadata.set(prefix + "factor", static_cast<float>(rope.factor));
  } else if (rope.kind == RopeSpec::Kind::kYarn) {
    if (static_cast<float>(rope.attention_factor) !=
        static_cast<float>(default_yarn_attention_factor(rope.factor))) {
      throw UnsupportedError(fmt::format(
          "GGUF cannot hold the yarn attention factor {} of this model: readers derive {} from the "
          "factor {}; keep the Hugging Face folder",
          rope.attention_factor, default_yarn_attention_factor(rope.factor), rope.factor));
    }
    if (!rope.truncate) {
      throw UnsupportedError(
          "GGUF cannot hold yarn scaling with truncate = false; keep the Hugging Face folder");
    }
    metadata.set(prefix + "type", std::string("yarn"));
    metadata.set(prefix + "factor", static_cast<float>(rope.factor));
    metadata.set(prefix + "original_context_length", static_cast<uint32_t>(rope.original_context));
    const RopeSpec defaults;  // the same as those of GGUF readers
    if (rope.beta_fast != defaults.beta_fast) {
      metadata.set(prefix + "yarn_beta_fast", static_cast<float>(rope.beta_fast));
    }
    if (rope.beta_slow != defaults.beta_slow) {
      metadata.set(prefix + "yarn_beta_slow", static_cast<float>(rope.beta_slow));
    }
  }
}

std::vector<float> llama3_frequency_factors(const RopeSpec& rope) {
  constexpr auto kTwoPi = static_cast<float>(6.283185307179586);
  const auto dim = static_cast<float>(rope.rotary_dims);
  const double log_theta = log64(static_cast<double>(static_cast<float>(rope.theta)));
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto context = static_cast<float>(rope.original_context);
  std::vector<float> factors;
  for (int i = 0; i < rope.rotary_dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / dim;
    const auto power = static_cast<float>(exp64(static_cast<double>(exponent) * log_theta));
    const float frequency = 1.0f / power;
    const float wavelength = (1.0f / frequency) * kTwoPi;
    if (wavelength < context / high) {
      factors.push_back(1.0f);
    } else if (wavelength > context / low) {
      factors.push_back(factor);
    } else {
      const float smooth = ((1.0f / wavelength) * context - low) / (high - low);
      factors.push_back(1.0f / ((1.0f - smooth) / factor + smooth));
    }
  }
  return factors;
}

namespace {

bool gives(const RopeSpec& rope, const std::vector<float>& factors) {
  const std::vector<float> own = llama3_frequency_factors(rope);
  return own.size() == factors.size() &&
         std::memcmp(own.data(), factors.data(), own.size() * sizeof(float)) == 0;
}

/// Solves for high_freq_factor and the original context from two factors between 1 and `factor`:
/// smooth = a/wavelength − b with a = L/(high − low), b = low/(high − low), low = 1.
std::optional<RopeSpec> solve_llama3(RopeSpec rope, const std::vector<float>& factors) {
  const double log_theta = log64(rope.theta);
  std::vector<std::pair<double, double>> points;  // 1/wavelength, smooth
  for (size_t i = 0; i < factors.size(); ++i) {
    const double f = factors[i];
    if (!(f > 1.0 && f < rope.factor)) continue;
    const double power =
        exp64(2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dims) * log_theta);
    points.emplace_back(1.0 / (power * 6.283185307179586),
                        (1.0 / f - 1.0 / rope.factor) / (1.0 - 1.0 / rope.factor));
  }
  if (points.size() < 2) return std::nullopt;
  const auto [x1, y1] = points.front();
  const auto [x2, y2] = points.back();
  const double a = (y1 - y2) / (x1 - x2);
  const double b = a * x1 - y1;
  if (!(b > 1e-6) || !(a > 0.0)) return std::nullopt;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = std::round((1.0 + 1.0 / b) * 64.0) / 64.0;
  const double context = std::round(a * (rope.high_freq_factor - 1.0));
  if (!(context >= 1.0 && context <= static_cast<double>(kMaxContext))) return std::nullopt;
  rope.original_context = static_cast<int64_t>(context);
  return rope;
}

/// The parameters of llama3 scaling that give exactly `factors`: those in use first (low 1, high 4,
/// L a power of two), then what the factors themselves say.
RopeSpec recover_llama3(RopeSpec rope, const std::vector<float>& factors,
                        const std::string& source) {
  rope.kind = RopeSpec::Kind::kLlama3;
  const float largest = *std::max_element(factors.begin(), factors.end());
  std::vector<double> candidates = {largest, 8.0, 32.0, 16.0, 4.0, 2.0};
  for (const double factor : candidates) {
    rope.factor = factor;
    rope.low_freq_factor = 1.0;
    rope.high_freq_factor = 4.0;
    for (const int shift : {13, 9, 10, 11, 12, 14, 15, 16, 17, 18, 8, 7, 6}) {
      rope.original_context = int64_t{1} << shift;
      if (gives(rope, factors)) return rope;
    }
    const std::optional<RopeSpec> solved = solve_llama3(rope, factors);
    if (solved && gives(*solved, factors)) return *solved;
  }
  throw UnsupportedError(source +
                         ": \"rope_freqs.weight\" does not hold the factors of llama3 rope "
                         "scaling; other frequency factors are not supported");
}

}  // namespace

std::optional<std::vector<float>> read_frequency_factors_gguf(const GgufFile& file,
                                                              int rotary_dims) {
  const GgufTensor* found = file.find("rope_freqs.weight");
  if (found == nullptr) return std::nullopt;
  const GgufTensor& tensor = *found;
  if (tensor.shape != Shape{rotary_dims / 2}) {
    throw FormatError(fmt::format("{}: \"{}\" has shape {}, expected [{}]", file.path(),
                                  tensor.name, to_string(tensor.shape), rotary_dims / 2));
  }
  const WeightView view{
      .format = tensor.format, .rows = 1, .columns = rotary_dims / 2, .data = tensor.bytes};
  std::vector<float> values(static_cast<size_t>(rotary_dims / 2));
  tensor.format->decode_row(view, 0, values);
  for (const float value : values) {
    if (!(std::isfinite(value) && value > 0.0f)) {
      throw FormatError(fmt::format("{}: \"{}\" holds {}; expected positive factors", file.path(),
                                    tensor.name, value));
    }
  }
  return values;
}

RopeSpec read_rope_gguf(const GgufFile& file, std::string_view architecture, int rotary_dims,
                        int64_t context_length) {
  const std::string prefix = std::string(architecture) + ".rope.";
  const std::string scaling = prefix + "scaling.";
  RopeSpec rope;
  rope.rotary_dims = rotary_dims;
  rope.theta = read_number_gguf(file, prefix + "freq_base", 1e-6, kMaxTheta, 10000.0);

  const double old_linear_factor =
      read_number_gguf(file, prefix + "scale_linear", 0.0, kMaxFactor, 1.0);
  const std::string type =
      file.metadata()
          .string(scaling + "type")
          .value_or(old_linear_factor != 1.0 && old_linear_factor != 0.0 ? "linear" : "none");
  if (type == "linear") {
    rope.kind = RopeSpec::Kind::kLinear;
    rope.factor = read_number_gguf(file, scaling + "factor", 1e-6, kMaxFactor, old_linear_factor);
  } else if (type == "yarn") {
    rope.kind = RopeSpec::Kind::kYarn;
    rope.factor = read_number_gguf(file, scaling + "factor", 1.0, kMaxFactor, 1.0);
    rope.original_context = static_cast<int64_t>(
        read_number_gguf(file, scaling + "original_context_length", 1.0,
                         static_cast<double>(kMaxContext), static_cast<double>(context_length)));
    rope.beta_fast = read_number_gguf(file, scaling + "yarn_beta_fast", 1e-6, kMaxFactor, 32.0);
    rope.beta_slow = read_number_gguf(file, scaling + "yarn_beta_slow", 1e-6, kMaxFactor, 1.0);
    rope.attention_factor = default_yarn_attention_factor(rope.factor);
    for (const char* key : {"yarn_ext_factor", "yarn_attn_factor", "attn_factor"}) {
      if (read_number_gguf(file, scaling + key, -kMaxFactor, kMaxFactor, 1.0) != 1.0) {
        throw UnsupportedError(
            fmt::format("{}: \"{}{}\" other than 1 is not supported", file.path(), scaling, key));
      }
    }
  } else if (type != "none") {
    throw UnsupportedError(
        fmt::format("{}: rope scaling type \"{}\" is not supported; none, linear and yarn are",
                    file.path(), type));
  }

  const std::optional<std::vector<float>> factors = read_frequency_factors_gguf(file, rotary_dims);
  if (!factors) return rope;
  if (rope.kind != RopeSpec::Kind::kDefault) {
    throw UnsupportedError(file.path() +
                           ": \"rope_freqs.weight\" together with rope scaling is not supported");
  }
  return recover_llama3(rope, *factors, file.path());
}

}  // namespace assay
