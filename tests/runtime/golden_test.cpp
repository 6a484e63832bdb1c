// Hashes that are the same on every machine, compiler, instruction set and thread count. The files
// under tests/data/runtime were made by this program after reference_slow_test had passed; they
// change only if the arithmetic does (then with a new id). ASSAY_UPDATE_GOLDEN=1 writes them anew.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>

#include "convert/core/file.h"
#include "convert/core/isa.h"
#include "convert/core/sha256.h"
#include "runtime/cpu_executor.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/elementwise.h"
#include "runtime/ops/kv_write.h"
#include "runtime/ops/nll.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/sampling.h"
#include "tests/runtime/references.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/tiny_model.h"
#include "tests/support/weight_matrix.h"

namespace assay {
namespace {

using test::Random;

constexpr const char* kLogitsFile = "tests/data/runtime/golden_logits.json";
constexpr const char* kFamiliesFile = "tests/data/runtime/golden_families.json";
constexpr const char* kOpsFile = "tests/data/runtime/golden_ops.json";

bool updating() { return std::getenv("ASSAY_UPDATE_GOLDEN") != nullptr; }

/// Runs `make` once per instruction set of this machine and compares with the file.
void compare_with_golden(const char* file, const std::function<Json(const Json& golden)>& make) {
  const std::string path = test::source_path(file);
  const Json golden = read_json_file(path);
  const Isa before = active_isa();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    force_isa(isa);

    const Json actual = make(golden);

    EXPECT_EQ(actual.dump(), golden.dump()) << isa_name(isa);
    if (updating()) write_text_file(path, actual.dump() + "\n");
  }
  force_isa(before);
}

std::string hash_of(std::span<const float> values) { return sha256_hex(std::as_bytes(values)); }

/// The bundled model, loaded once per KV type.
class BundledModel {
 public:
  Executor& with(KvType type) {
    auto& executor = executors_[static_cast<size_t>(type)];
    if (!executor) {
      executor = make_cpu_device()->load(checkpoint_, {.kv_type = type, .context = 256});
    }
    return *executor;
  }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_ =
      Checkpoint::open(test::source_path("tests/data/llama-tiny"));
  std::array<std::unique_ptr<Executor>, 3> executors_;
};

/// The entry again with hashes of the logits, of all positions and of the last alone, for the KV
/// types that it names.
Json with_logit_hashes(BundledModel& model, Json entry) {
  const std::vector<int32_t> ids = test::ids_of(entry.at("token_ids"));
  constexpr size_t kMostScalarTokens = 64;  // plain loops take a second for 20 tokens
  if (active_isa() == Isa::kScalar && ids.size() > kMostScalarTokens) return entry;
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    const std::string name(kv_type_name(type));
    if (entry.find("all_" + name) == nullptr) continue;
    const std::vector<float> logits = test::prompt_logits(model.with(type), ids, LogitRows::kAll);
    entry.set("all_" + name, hash_of(logits));
    entry.set("last_" + name, hash_of(std::span(logits).last(logits.size() / ids.size())));
  }
  return entry;
}

TEST(Golden, LogitsOfTheBundledModel) {
  BundledModel model;

  compare_with_golden(kLogitsFile, [&](const Json& golden) {
    Json prompts = Json::array();
    for (const Json& entry : golden.at("prompts").as_array()) {
      prompts.push(with_logit_hashes(model, entry));
    }
    Json result = Json::object();
    return result.set("prompts", std::move(prompts));
  });
}

/// Each family's tiny random model, so that no bit of its ops can change unseen: recurrences,
/// windows, experts, gates.
TEST(Golden, LogitsOfEveryFamily) {
  compare_with_golden(kFamiliesFile, [](const Json&) {
    Json hashes = Json::object();
    for (const std::string& name : test::family_models()) {
      const auto executor =
          make_cpu_device()->load(Checkpoint::open(test::family_model_path(name)), {.context = 48});
      std::vector<int32_t> ids(48);
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int32_t>(static_cast<int64_t>(i * 37) %
                                      executor->program().spec.vocab_size);
      }
      hashes.set(name, hash_of(test::prompt_logits(*executor, ids, LogitRows::kAll)));
    }
    return hashes;
  });
}

std::string linear_hash(const WeightFormat& format) {
  const int64_t columns = 1280, rows = 33, n_tokens = 3;
  const auto matrix = test::random_weight_matrix(format, rows, columns, 64, 1);
  const std::vector<float> input = Random(2).reals(static_cast<size_t>(n_tokens * columns), 2.0f);
  BlockInt16 x;
  quantize_block_int16(input.data(), n_tokens, columns, columns, x);
  const PackedMatrix packed = PackedMatrix::pack(
      format, rows, columns, matrix.view.group_size,
      [&](int64_t row, IntegerRow& out) { format.read_integers(matrix.view, row, out); });
  std::vector<float> out(static_cast<size_t>(n_tokens * rows));
  linear(packed, x, {}, out.data(), rows);
  return hash_of(out);
}

std::string attention_hash(KvType type) {
  const int64_t n = 300, d = 80;
  const std::vector<float> q = Random(3).reals(static_cast<size_t>(d), 3.0f);
  const std::vector<float> k = Random(4).reals(static_cast<size_t>(n * d), 3.0f);
  const std::vector<float> v = Random(5).reals(static_cast<size_t>(n * d), 3.0f);
  std::vector<std::byte> keys(k.size() * kv_type_bytes(type)), values(keys.size());
  round_to_cache(k.data(), n * d, type, keys.data());
  round_to_cache(v.data(), n * d, type, values.data());
  std::vector<float> out(static_cast<size_t>(d));
  attend(q.data(), keys.data(), values.data(), type, 5, n - 1, static_cast<int>(d), 0.125f,
         out.data());
  return hash_of(out);
}

Json ops_json(const Json& golden) {
  // Formats that the file does not know yet are not compared: they are added with the next update.
  Json linears = Json::object();
  for (const WeightFormat* format : all_formats()) {
    const bool known = golden.at("linear").find(format->name()) != nullptr;
    if (known || updating()) linears.set(format->name(), linear_hash(*format));
  }
  Json attention = Json::object();
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    attention.set(kv_type_name(type), attention_hash(type));
  }
  const std::vector<float> a = Random(6).reals(3 * 2561, 4.0f), b = Random(7).reals(3 * 2561, 4.0f);
  std::vector<float> norm(a.size()), activated(a.size());
  rms_norm(a.data(), b.data(), 1e-5f, 3, 2561, norm.data());
  swiglu(a.data(), b.data(), static_cast<int64_t>(a.size()), activated.data());
  const float loss = nll(a, 17);
  std::vector<int32_t> drawn;
  const SamplingOptions sampling{
      .temperature = 0.9f, .top_k = 200, .top_p = 0.9f, .min_p = 0.01f, .seed = 42};
  for (int64_t i = 0; i < 50; ++i) drawn.push_back(sample(a, sampling, i));

  Json result = Json::object();
  result.set("linear", std::move(linears)).set("attention", std::move(attention));
  result.set("rms_norm", hash_of(norm)).set("swiglu", hash_of(activated));
  result.set("nll", hash_of(std::span(&loss, 1))).set("sample", sha256_of_token_ids(drawn));
  return result;
}

TEST(Golden, OutputsOfSingleOps) { compare_with_golden(kOpsFile, ops_json); }

}  // namespace
}  // namespace assay
