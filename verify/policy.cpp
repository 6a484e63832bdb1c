#include "verify/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "convert/core/error.h"
#include "verify/describe.h"

namespace assay {
namespace {

constexpr double kFp32NoiseFactor = 4.0;
constexpr double kBlockInt16Ratio = 0.171;

double kv_ratio(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 0.0;
    case KvType::kF16:
      return 0.125;
    case KvType::kBF16:
      return 1.0;
  }
  return 1.0;
}

/// Largest max_abs of entries of noise.json, by the kind of way.
struct MeasuredNoise {
  double fp32 = 0.0;
  double bf16 = 0.0;
  bool found = false;

  /// Adds the entries of a list; those of one tensor only where `tensor` is not empty.
  void add(const Json* list, std::string_view tensor) {
    if (list == nullptr || !list->is_array()) return;
    for (const Json& entry : list->as_array()) {
      const Json *way = entry.find("way"), *size = entry.find("max_abs");
      if (way == nullptr || size == nullptr || !way->is_string() || !size->is_number()) continue;
      const Json* name = entry.find("tensor");
      if (!tensor.empty() && (name == nullptr || !(*name == Json(tensor)))) continue;
      found = true;
      double& most = way->as_string().starts_with("bf16") ? bf16 : fp32;
      most = std::max(most, size->as_number());
    }
  }

  double tolerance(KvType kv_type) const {
    return kFp32NoiseFactor * fp32 + (kBlockInt16Ratio + kv_ratio(kv_type)) * bf16;
  }
};

/// NLL limits against a foreign fp32 reference: 2e-5 on the mean and 2e-4 on every window are what
/// the arithmetic's definition was measured to keep, by an order of magnitude with f32 keys and
/// values; f16 ones cost 5e-5, bf16 ones 2.5e-4 (arithmetic.md).
void set_reference_nll_limits(KvType kv_type, Policy& policy) {
  policy.max_window_nll_difference = kv_type == KvType::kBF16 ? 2e-3 : 2e-4;
  policy.max_delta_nll = kv_type == KvType::kF32 ? 2e-5 : kv_type == KvType::kF16 ? 2e-4 : 1e-3;
}

/// Limits for equal weights in other block formats, where only the order of the sums differs. The
/// roundings of keys and values make most of it: repacks of six small models of three families
/// differ by at most 0.0032 of a logit with f32 ones, 0.025 with f16 and 0.15 with bf16; in KLD by
/// 6e-7 and 1.1e-5.
void set_repack_limits(KvType kv_type, Policy& policy) {
  const bool bf16 = kv_type == KvType::kBF16;
  policy.max_logit_difference = kv_type == KvType::kF32 ? 0.02 : bf16 ? 0.6 : 0.1;
  policy.max_window_nll_difference = bf16 ? 4e-3 : 5e-4;
  policy.max_delta_nll = bf16 ? 8e-4 : 1e-4;
  policy.max_kld = bf16 ? 1e-4 : 1e-5;
}

Policy default_policy(PairKind pair, KvType kv_type, const Json& noise) {
  Policy policy;
  switch (pair) {
    case PairKind::kSameFormats:
      policy.bitwise = true;
      policy.reason =
          "plain numbers or the same formats on both sides: equal weights give equal bits";
      break;
    case PairKind::kCanonicalReference:
      policy.bitwise = true;
      policy.reason = "the reference was written in the same arithmetic with the same KV type";
      break;
    case PairKind::kSameWeightsOtherFormats:
      set_repack_limits(kv_type, policy);
      policy.reason =
          "other block formats on each side: weights must be equal, sums run in another order";
      break;
    case PairKind::kQuantizedOriginal:
      policy.weights = Policy::Weights::kPlain;
      policy.reason = "a quantized model against its original: only limits given by you are judged";
      break;
    case PairKind::kForeignReference:
      policy.max_logit_difference = derive_logit_tolerance(noise, kv_type);
      set_reference_nll_limits(kv_type, policy);
      policy.reason =
          policy.max_logit_difference
              ? "a reference in other arithmetic: logit limit derived from its noise.json"
              : "a reference in other arithmetic without noise.json: no limit for logits";
      break;
  }
  return policy;
}

void append(std::string_view name, const std::optional<double>& limit,
            std::vector<std::string>& parts) {
  if (limit) parts.push_back(fmt::format("{} {}", name, describe_figure(*limit)));
}

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

Json Policy::to_json() const {
  Json json = Json::object();
  json.set("kind", bitwise ? "bitwise" : "tolerance");
  json.set("reason", reason);
  json.set("max_logit_difference", json_of(max_logit_difference));
  json.set("max_window_nll_difference", json_of(max_window_nll_difference));
  json.set("max_delta_nll", json_of(max_delta_nll));
  json.set("max_kld", json_of(max_kld));
  const char* const names[] = {"all", "plain", "none"};
  json.set("equal_weights", bitwise ? "all" : names[static_cast<size_t>(weights)]);
  return json;
}

std::string Policy::describe() const {
  if (bitwise) return "bitwise";
  std::vector<std::string> parts;
  append("logits", max_logit_difference, parts);
  append("window NLL", max_window_nll_difference, parts);
  append("delta_nll", max_delta_nll, parts);
  append("KLD", max_kld, parts);
  if (parts.empty()) return "tolerance without limits: figures are reported, not judged";
  return fmt::format("tolerance: {}", fmt::join(parts, ", "));
}

std::optional<double> derive_logit_tolerance(const Json& noise, KvType kv_type) {
  MeasuredNoise measured;
  measured.add(noise.find("logits"), {});
  measured.add(noise.find("hidden"), "logits");
  if (measured.fp32 == 0.0 || measured.bf16 == 0.0) return std::nullopt;
  return measured.tolerance(kv_type);
}

std::optional<double> derive_state_tolerance(const Json& noise, std::string_view state,
                                             KvType kv_type) {
  MeasuredNoise measured;
  measured.add(noise.find("hidden"), state);
  if (!measured.found) return std::nullopt;
  return measured.tolerance(kv_type);
}

void require_one_policy(const PolicyRequest& request) {
  if (request.bitwise.value_or(false) && request.has_limit()) {
    throw UsageError(
        "--policy bitwise allows no difference: leave out the --max-… options, or take --policy "
        "tolerance");
  }
}

Policy choose_policy(PairKind pair, const PolicyRequest& request, KvType kv_type,
                     const Json& noise) {
  require_one_policy(request);
  Policy policy = default_policy(pair, kv_type, noise);
  if (request.bitwise) {
    if (*request.bitwise) {
      policy = Policy{};
      policy.bitwise = true;
    } else {
      policy.bitwise = false;
      policy.weights = Policy::Weights::kNone;
    }
    policy.reason = "asked for with --policy";
  } else if (request.has_limit() && policy.bitwise) {
    policy.bitwise = false;
    policy.weights = Policy::Weights::kNone;
    policy.reason = "limits were given";
  }
  const auto take = [](const std::optional<double>& wanted, std::optional<double>& limit) {
    if (wanted) limit = wanted;
  };
  take(request.max_logit_difference, policy.max_logit_difference);
  take(request.max_window_nll_difference, policy.max_window_nll_difference);
  take(request.max_delta_nll, policy.max_delta_nll);
  take(request.max_kld, policy.max_kld);
  return policy;
}

}  // namespace assay
