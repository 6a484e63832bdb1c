#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "convert/core/json.h"
#include "runtime/kv_cache.h"

namespace assay {

/// What counts as equal. With `bitwise` every bit must agree and the limits are not used; else a
/// check whose limit is empty only reports its figures.
struct Policy {
  bool bitwise = false;
  std::optional<double> max_logit_difference;       // |a − b| of any logit
  std::optional<double> max_window_nll_difference;  // |mean of B − A| of any window, nats per token
  std::optional<double> max_delta_nll;              // |mean of B − A| of all windows
  std::optional<double> max_kld;                    // mean KLD(A ‖ B), nats per token
  /// Which weights must be equal (with tolerance): all; those that both sides store as plain
  /// numbers of one type; none.
  enum class Weights : uint8_t { kAll, kPlain, kNone } weights = Weights::kAll;
  std::string reason;  // why this policy: one sentence

  Json to_json() const;
  std::string describe() const;  // "bitwise", "tolerance: logits 0.01, delta_nll 2e-05"
};

/// What the user asked for on the command line; empty: as the pair of sides suggests.
struct PolicyRequest {
  std::optional<bool> bitwise = {};
  std::optional<double> max_logit_difference = {}, max_window_nll_difference = {},
                        max_delta_nll = {}, max_kld = {};

  bool has_limit() const {
    return max_logit_difference || max_window_nll_difference || max_delta_nll || max_kld;
  }
};

/// Throws UsageError for limits together with bitwise.
void require_one_policy(const PolicyRequest& request);

/// How two sides relate, found from their files.
enum class PairKind : uint8_t {
  kSameFormats,              // models whose tensors are stored alike: equal weights give equal bits
  kSameWeightsOtherFormats,  // both hold codes, in other formats: a repack
  kQuantizedOriginal,        // codes on one side, plain numbers on the other
  kCanonicalReference,       // a bundle that canonical-1 wrote with the same KV type
  kForeignReference,         // a bundle of another program or KV type
};

/// The policy of a pair; what the user asked for goes first. `noise` is the noise.json of a foreign
/// reference, or null. Throws what require_one_policy throws.
Policy choose_policy(PairKind pair, const PolicyRequest& request, KvType kv_type,
                     const Json& noise);

/// Largest difference of a logit that canonical-1 may show against an fp32 run of the same weights,
/// from the noise that the reference program measured on itself:
///   4 · (largest fp32 noise) + (r_q + r_kv) · (largest difference of its bf16 run)
/// The first term is another order of fp32 additions. The second scales what bf16 roundings do to
/// this model's logits by the ratio of rounding errors (root mean square, per value): bf16 errs by
/// 2^-7·0.7355/√12 = 1.66e-3 of a value. Block int16 in groups of 128 errs by s/√12 with
/// s ≤ amax/16320, at most κ·1.77e-5 of the group's rms for a crest κ = amax/rms ≤ √128, so
/// by 2.0e-4 = 0.121 bf16 errors; activations and weights both, independently: r_q = √2·0.121 =
/// 0.171. f16 keys and values have 3 bits more than bf16: r_kv = 1/8; bf16 ones r_kv = 1; f32 ones
/// 0. Empty if `noise` lacks the figures.
std::optional<double> derive_logit_tolerance(const Json& noise, KvType kv_type);

/// The same for one hidden state ("layer.0.output"), from its own noise. 0 where the reference
/// program found none, as for embeddings: they must be equal.
std::optional<double> derive_state_tolerance(const Json& noise, std::string_view state,
                                             KvType kv_type);

}  // namespace assay
