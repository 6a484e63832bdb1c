#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "convert/core/error.h"
#include "convert/core/parallel.h"
#include "convert/gguf_export.h"
#include "runtime/cpu_executor.h"
#include "tests/runtime/naive_llama.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using test::bits_equal;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 320;

/// A random model on disk and loaded.
class LoadedModel {
 public:
  explicit LoadedModel(const test::TinyModelOptions& model = {}, ExecutorOptions options = {},
                       const std::function<void(test::TinyModel&)>& change = nullptr) {
    test::TinyModel tiny = test::make_tiny_model(model);
    if (change) change(tiny);
    checkpoint_ = Checkpoint::open(tiny.write(folder_.file("model")));
    if (options.context == 0) options.context = 256;
    executor_ = make_cpu_device()->load(checkpoint_, options);
  }

  Executor& operator*() { return *executor_; }
  Executor* operator->() { return executor_.get(); }
  const std::shared_ptr<const Checkpoint>& checkpoint() const { return checkpoint_; }

  /// Logits of one call with one item.
  std::vector<float> run(int sequence, std::span<const int32_t> ids,
                         LogitRows rows = LogitRows::kAll) {
    std::vector<float> logits;
    const BatchItem item{sequence, ids, rows};
    executor_->forward(std::span(&item, 1), logits);
    return logits;
  }

 private:
  test::TemporaryDirectory folder_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Executor> executor_;
};

std::vector<int32_t> random_ids(size_t n, uint64_t seed) {
  test::Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocab));
  return ids;
}

/// Logits at all positions, `chunk` tokens a call.
std::vector<float> run_chunked(LoadedModel& model, int sequence, std::span<const int32_t> ids,
                               size_t chunk) {
  std::vector<float> all;
  for (size_t i = 0; i < ids.size(); i += chunk) {
    const auto part = model.run(sequence, ids.subspan(i, std::min(chunk, ids.size() - i)));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void expect_close_to_naive(const test::TinyModelOptions& options) {
  LoadedModel model(options, {.kv_type = KvType::kF32});
  const auto ids = random_ids(40, 3);

  const std::vector<float> logits = model.run(0, ids);

  const std::vector<double> exact = test::naive_llama_logits(*model.checkpoint(), ids);
  ASSERT_EQ(logits.size(), exact.size());
  double squares = 0.0, reference = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    squares += std::pow(logits[i] - exact[i], 2);
    reference += std::pow(exact[i], 2);
  }
  // Block int16 rounds each input of a linear by at most 2·amax/32,639 / sqrt(12) rms: below 1e-4
  // of its rms for 128 values that are not extremely uneven. Nine such steps lie in a row in two
  // layers and the head, so 3e-4 in rms; anything wired wrongly is off by far more than 1e-2.
  EXPECT_LT(std::sqrt(squares / reference), 1e-3);
}

TEST(Executor, EqualsTheFormulasInFp64ForEveryFeatureOfTheFamily) {
  expect_close_to_naive({});
  expect_close_to_naive({.tied_head = true});
  expect_close_to_naive({.attention_bias = true});
  expect_close_to_naive({.mlp_bias = true});
  expect_close_to_naive({.n_heads = 3, .n_kv_heads = 1, .head_dim = 26});
  expect_close_to_naive({.n_heads = 4, .n_kv_heads = 4, .dtype = DType::kF32});
  expect_close_to_naive({.hidden_size = 160, .intermediate_size = 700});
}

TEST(Executor, Case_B65_TheWindowOfMistralCountsTheOwnToken) {
  test::TinyModelOptions options{.model_type = "mistral"};
  options.config.emplace_back("sliding_window", 4);

  expect_close_to_naive(options);
}

TEST(Executor, Case_B72_ChunksOfAnySizeGiveTheSameBits) {
  const auto ids = random_ids(70, 1);
  for (const KvType type : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    LoadedModel whole({}, {.kv_type = type});
    const std::vector<float> expected = whole.run(0, ids);
    ASSERT_EQ(expected.size(), 70 * kVocab);

    for (const size_t chunk : {1u, 4u, 7u, 64u}) {
      whole->reset(0);
      EXPECT_TRUE(bits_equal(run_chunked(whole, 0, ids, chunk), expected)) << chunk;
    }
  }
}

TEST(Executor, Case_B72_TheBatchLimitChangesNoBit) {
  const auto ids = random_ids(150, 1);
  LoadedModel whole;
  const std::vector<float> expected = whole.run(0, ids);

  for (const int64_t limit : {1, 7, 64, 100}) {
    LoadedModel cut({}, {.max_batch_tokens = limit});
    EXPECT_TRUE(bits_equal(cut.run(0, ids), expected)) << limit;
  }
}

TEST(Executor, Case_B72_TwoSequencesTogetherGiveTheBitsOfEachAlone) {
  LoadedModel model({}, {.n_sequences = 2});
  const auto a = random_ids(50, 1), b = random_ids(31, 2);
  const std::vector<float> alone_a = model.run(0, a), alone_b = model.run(1, b);
  model->reset(0);
  model->reset(1);

  // First parts together, then the rest together in the other order.
  const std::span<const int32_t> ids_a(a), ids_b(b);
  std::vector<float> first, second;
  const BatchItem begin[] = {{0, ids_a.first(20), LogitRows::kAll},
                             {1, ids_b.first(30), LogitRows::kAll}};
  const BatchItem end[] = {{1, ids_b.subspan(30), LogitRows::kAll},
                           {0, ids_a.subspan(20), LogitRows::kAll}};
  model->forward(begin, first);
  model->forward(end, second);

  std::vector<float> together_a(first.begin(), first.begin() + 20 * kVocab);
  together_a.insert(together_a.end(), second.begin() + kVocab, second.end());
  std::vector<float> together_b(first.begin() + 20 * kVocab, first.end());
  together_b.insert(together_b.end(), second.begin(), second.begin() + kVocab);
  EXPECT_TRUE(bits_equal(together_a, alone_a));
  EXPECT_TRUE(bits_equal(together_b, alone_b));
}

TEST(Executor, OneSequenceTwiceInABatchContinuesItself) {
  LoadedModel model;
  const auto ids = random_ids(20, 1);
  const std::vector<float> expected = model.run(0, ids);
  model->reset(0);

  std::vector<float> logits;
  const std::span<const int32_t> span(ids);
  const BatchItem items[] = {{0, span.first(13), LogitRows::kAll},
                             {0, span.subspan(13), LogitRows::kAll}};
  model->forward(items, logits);

  EXPECT_TRUE(bits_equal(logits, expected));
}

TEST(Executor, ThreadsChangeNoBit) {
  const auto ids = random_ids(40, 1);
  LoadedModel model;
  std::vector<std::vector<float>> results;

  for (const int threads : {1, 2, 3}) {
    set_n_threads(threads);
    model->reset(0);
    results.push_back(model.run(0, ids));
  }
  set_n_threads(0);

  EXPECT_TRUE(bits_equal(results[1], results[0]));
  EXPECT_TRUE(bits_equal(results[2], results[0]));
}

TEST(Executor, Case_B77_ResetForgetsEverything) {
  LoadedModel model;
  const auto a = random_ids(60, 1), b = random_ids(40, 2);
  const std::vector<float> alone_b = model.run(0, b);
  model->reset(0);
  const std::vector<float> alone_a = model.run(0, a);

  model->reset(0);
  EXPECT_TRUE(bits_equal(model.run(0, b), alone_b));
  model->reset(0);
  EXPECT_TRUE(bits_equal(model.run(0, a), alone_a));
  EXPECT_EQ(model->length(0), 60);
}

TEST(Executor, LogitRowsChooseWhatIsReturned) {
  LoadedModel model({}, {.n_sequences = 3});
  const auto ids = random_ids(9, 1);
  const std::vector<float> all = model.run(0, ids);
  model->reset(0);

  std::vector<float> logits;
  const BatchItem items[] = {
      {0, ids, LogitRows::kLast}, {1, ids, LogitRows::kNone}, {2, {}, LogitRows::kLast}};
  model->forward(items, logits);

  EXPECT_TRUE(bits_equal(logits, std::span(all).last(kVocab)));
  EXPECT_EQ(model->length(1), 9);
  EXPECT_EQ(model->length(2), 0);
  model->forward({}, logits);
  EXPECT_TRUE(logits.empty());
}

TEST(Executor, Case_B67_TooManyTokensAreRefusedBeforeAnythingRuns) {
  for (const size_t n : {15u, 16u, 17u}) {
    LoadedModel model({}, {.context = 16});
    const auto ids = random_ids(n, 1);
    if (n <= 16) {
      EXPECT_EQ(model.run(0, ids).size(), n * kVocab);
      continue;
    }
    try {
      model.run(0, ids);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("17"));
      EXPECT_THAT(error.what(), HasSubstr("16"));
    }
    EXPECT_EQ(model->length(0), 0);
  }
}

TEST(Executor, Case_B67_ASequenceThatIsFullTakesNoMore) {
  LoadedModel model({}, {.context = 16});
  const auto ids = random_ids(16, 1);
  model.run(0, ids);

  EXPECT_THROW(model.run(0, std::span(ids).first(1)), UsageError);
  EXPECT_EQ(model->length(0), 16);
}

TEST(Executor, RefusesIdsAndSequencesThatDoNotExist) {
  LoadedModel model;
  for (const int32_t id : {-1, 320, 1 << 30}) {
    const std::vector<int32_t> ids = {5, id};
    EXPECT_THROW(model.run(0, ids), UsageError) << id;
  }
  const std::vector<int32_t> good = {5};
  EXPECT_THROW(model.run(1, good), UsageError);
  EXPECT_THROW(model.run(-1, good), UsageError);
  EXPECT_EQ(model->length(0), 0);
}

TEST(Executor, RefusesOptionsThatMakeNoSense) {
  test::TemporaryDirectory folder;
  const auto checkpoint = Checkpoint::open(test::make_tiny_model().write(folder.file("m")));
  const auto device = make_cpu_device();

  EXPECT_THROW(device->load(checkpoint, {.n_sequences = 0}), UsageError);
  EXPECT_THROW(device->load(checkpoint, {.context = -1}), UsageError);
  EXPECT_THROW(device->load(checkpoint, {.max_batch_tokens = 0}), UsageError);
}

TEST(Executor, Case_B75_AnImpossibleContextIsRefusedAndASmallerLoadWorksAfterwards) {
  test::TemporaryDirectory folder;
  const auto checkpoint = Checkpoint::open(test::make_tiny_model().write(folder.file("m")));
  const auto device = make_cpu_device();

  try {
    device->load(checkpoint, {.n_sequences = 1000, .context = int64_t{1} << 40});
    FAIL() << "accepted";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("kv cache"));
    EXPECT_THAT(error.what(), HasSubstr("--context"));
  }

  EXPECT_NO_THROW(device->load(checkpoint, {.context = 16}));
}

TEST(Executor, TheEstimateIsWhatLoadingTakes) {
  for (const bool quantized : {false, true}) {
    test::TemporaryDirectory folder;
    test::TinyModel tiny = test::make_tiny_model({.attention_bias = true});
    if (quantized) test::quantize_as_compressed_tensors(tiny, {.symmetric = false});
    const auto checkpoint = Checkpoint::open(tiny.write(folder.file("m")));
    const auto device = make_cpu_device();
    for (const ExecutorOptions& options :
         {ExecutorOptions{.context = 64}, ExecutorOptions{.n_sequences = 3, .context = 100},
          ExecutorOptions{.context = 8, .max_batch_tokens = 3}}) {
      const auto estimate = device->estimate(*checkpoint, options);
      const auto executor = device->load(checkpoint, options);

      std::vector<int32_t> ids(8, 1);
      std::vector<float> logits;
      const BatchItem item{0, ids, LogitRows::kAll};
      executor->forward(std::span(&item, 1), logits);

      const auto ledger = executor->ledger();
      ASSERT_EQ(estimate.size(), ledger.size());
      for (size_t i = 0; i < ledger.size(); ++i) {
        EXPECT_EQ(estimate[i].name, ledger[i].name);
        if (ledger[i].name.starts_with("weights W")) {
          // Whether zero points differ, and which type holds the scales, shows in the data only.
          const auto real = static_cast<double>(ledger[i].bytes);
          EXPECT_NEAR(static_cast<double>(estimate[i].bytes), real, 0.1 * real);
        } else {
          EXPECT_EQ(estimate[i].bytes, ledger[i].bytes) << ledger[i].name;
        }
      }
    }
  }
}

TEST(Executor, AKeyThatOverflowsTheCacheTypeNamesOpLayerPositionAndValue) {
  const auto enlarge = [](test::TinyModel& tiny) {
    Tensor& k = tiny.tensor("model.layers.1.self_attn.k_proj.weight");
    for (size_t i = 1; i < k.bytes.size(); i += 2) k.bytes[i] = std::byte{0x48};  // about 1.3e5
  };
  LoadedModel model({}, {.kv_type = KvType::kF16}, enlarge);
  const auto ids = random_ids(5, 1);

  try {
    model.run(0, ids);
    FAIL() << "accepted";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layers.1.self_attn.kv_write: layer 1, sequence 0, "
                                        "position 0, column "));
    EXPECT_THAT(error.what(), HasSubstr("K is not finite after rounding to f16: "));
  }
  EXPECT_EQ(model->length(0), 0);
}

TEST(Executor, AWeightThatIsNotFiniteNamesModuleAndRow) {
  const auto spoil = [](test::TinyModel& tiny) {
    Tensor& gate = tiny.tensor("model.layers.0.mlp.gate_proj.weight");
    gate.bytes[2 * (64 * 7 + 5)] = std::byte{0x80};  // bf16 infinity at row 7
    gate.bytes[2 * (64 * 7 + 5) + 1] = std::byte{0x7f};
  };

  try {
    const LoadedModel model({}, {}, spoil);
    FAIL() << "accepted";
  } catch (const NumericError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.layers.0.mlp.gate_proj"));
    EXPECT_THAT(error.what(), HasSubstr("row 7"));
  }
}

TEST(Executor, TheObserverSeesEveryRegisterWithItsRows) {
  LoadedModel model;
  const auto ids = random_ids(6, 1);
  std::vector<float> logits, seen_logits;
  std::set<std::string> names;
  size_t calls = 0;
  const BatchItem item{0, ids, LogitRows::kLast};

  model->forward(std::span(&item, 1), logits,
                 [&](const Op& op, const RegisterSpec& spec, std::span<const float> values) {
                   ++calls;
                   names.insert(op.name);
                   const bool head = op.layer < 0 && op.name != "embed_tokens";
                   EXPECT_EQ(values.size(), static_cast<size_t>((head ? 1 : 6) * spec.columns));
                   if (op.name == "lm_head") seen_logits.assign(values.begin(), values.end());
                 });

  EXPECT_TRUE(bits_equal(seen_logits, logits));
  size_t written = 0;
  for (const Op& op : model->program().ops) written += writes(op).size();
  EXPECT_EQ(calls, written);
  for (const char* name : {"embed_tokens", "layers.0.input_layernorm", "layers.1.mlp.residual",
                           "layers.1.self_attn.o_proj", "norm", "lm_head"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

/// Logits of a folder and of the GGUF file made from it.
void expect_gguf_equals_folder(const test::TinyModel& tiny) {
  test::TemporaryDirectory folder;
  const auto from_folder = Checkpoint::open(tiny.write(folder.file("m")));
  GgufExport(from_folder, {}).write(folder.file("m.gguf"));
  const auto from_gguf = Checkpoint::open(folder.file("m.gguf"));
  const auto ids = random_ids(21, 1);
  const BatchItem item{0, ids, LogitRows::kAll};
  std::vector<float> expected, actual;

  make_cpu_device()->load(from_folder, {.context = 64})->forward(std::span(&item, 1), expected);
  make_cpu_device()->load(from_gguf, {.context = 64})->forward(std::span(&item, 1), actual);

  EXPECT_TRUE(bits_equal(actual, expected));
}

TEST(Executor, AGgufFileOfAPlainModelGivesTheBitsOfItsFolder) {
  expect_gguf_equals_folder(test::make_tiny_model());
  expect_gguf_equals_folder(test::make_tiny_model({.tied_head = true, .attention_bias = true}));
}

TEST(Executor, CodesMovedIntoQ4_0GiveTheBitsOfTheFolder) {
  test::TinyModel tiny = test::make_tiny_model();
  // Groups of 32 are the blocks of Q4_0; scales of 8 bits fit its f16 only if their exponents do.
  test::quantize_as_compressed_tensors(
      tiny, {.symmetric = true, .group_size = 32, .scale_dtype = DType::kF16});

  expect_gguf_equals_folder(tiny);
}

// --- programs ---------------------------------------------------------------------------------

TEST(Program, SharesRegistersBetweenLayersAndInputsBetweenLinears) {
  LoadedModel two({.n_layers = 2}), five({.n_layers = 5});

  const Program& program = two->program();

  EXPECT_EQ(program.registers.size(), five->program().registers.size());
  ASSERT_EQ(program.layers.size(), 2u);
  EXPECT_EQ(program.layers[0].end, program.layers[1].begin);
  EXPECT_EQ(program.layers[1].end - program.layers[1].begin,
            program.layers[0].end - program.layers[0].begin);
  int quantizations = 0, linears = 0;
  for (int i = program.layers[0].begin; i < program.layers[0].end; ++i) {
    const Op& op = program.ops[static_cast<size_t>(i)];
    EXPECT_EQ(op.layer, 0);
    quantizations += std::holds_alternative<QuantizeOp>(op.kind);
    linears += std::holds_alternative<LinearOp>(op.kind);
  }
  EXPECT_EQ(quantizations, 4);
  EXPECT_EQ(linears, 7);
  EXPECT_EQ(program.ropes.size(), 1u);
}

template <typename Kind>
void expect_tells_what_it_carries() {
  SCOPED_TRACE(Kind::kName);
  Kind kind;
  if constexpr (requires { kind.cache_layer; }) {
    kind.cache_layer = 3;
    const Uses uses = kind.uses();
    EXPECT_TRUE(uses.cache_written == 3 || uses.cache_read == 3);
  }
  if constexpr (requires { kind.state_layer; }) {
    kind.state_layer = 3;
    EXPECT_EQ(kind.uses().state, 3);
  }
}

template <typename... Kinds>
std::set<std::string_view> check_kinds(const std::variant<Kinds...>&) {
  (expect_tells_what_it_carries<Kinds>(), ...);
  return {Kinds::kName...};
}

TEST(Program, OpsTellWhatTheyCarryAndHaveNamesOfTheirOwn) {
  const Op op;

  const std::set<std::string_view> names = check_kinds(op.kind);

  EXPECT_EQ(names.size(), std::variant_size_v<decltype(op.kind)>);
}

TEST(Program, NamesMatricesLikeTheCheckpointAndKeepsTheHeadFromBeingQuantized) {
  LoadedModel untied, tied({.tied_head = true});

  const auto& matrices = untied->program().matrices;

  EXPECT_EQ(matrices.front().module, "model.embed_tokens");
  EXPECT_EQ(matrices[1].module, "model.layers.0.self_attn.q_proj");
  EXPECT_TRUE(matrices[1].quantizable);
  EXPECT_EQ(matrices.back().module, "lm_head");
  EXPECT_FALSE(matrices.back().quantizable);
  EXPECT_EQ(tied->program().matrices.back().module, "model.embed_tokens");
  EXPECT_FALSE(tied->program().matrices.back().quantizable);
}

TEST(Program, Case_B68_TheScaleOfTheScoresComesFromTheHeadSize) {
  LoadedModel model({.n_heads = 3, .n_kv_heads = 1, .head_dim = 26});

  for (const Op& op : model->program().ops) {
    const auto* attention = std::get_if<AttentionOp>(&op.kind);
    if (attention == nullptr) continue;
    EXPECT_EQ(attention->scale, static_cast<float>(1.0 / std::sqrt(26.0)));
  }
}

// --- single ops -------------------------------------------------------------------------------

/// A program of one attention op over a hand-filled cache: one head of one dimension.
struct WindowCase {
  Program program;
  CpuContext context;
  KvCache cache;

  explicit WindowCase(int64_t n_rows) : cache({CacheLayerSpec{1, 1, 4}}, KvType::kF32, 1, 16) {
    program.registers = {{"q", 1, false}, {"out", 1, false}};
    program.cache_layers = {CacheLayerSpec{1, 1, 4}};
    program.ops = {{AttentionOp{{0}, {1}, 0, 1, 1, 1, 1.0f, 4}, "attention", 0}};
    prepare_registers(program, 0, 1, n_rows, context);
    context.cache = &cache;
  }
};

TEST(AttentionOp, Case_B65_AHugeValueAtKeyZeroStopsActingAtQueryFour) {
  WindowCase setup(8);
  auto* values = reinterpret_cast<float*>(setup.cache.values(0, 0, 0));
  std::fill_n(values, 16, 0.0f);
  values[0] = 1200.0f;  // all keys are 0, so every visible key has the same weight
  for (int64_t position = 0; position < 8; ++position) setup.context.rows.push_back({0, position});

  run_op(setup.program.ops[0], setup.context);

  const std::vector<float> expected = {1200, 600, 400, 300, 0, 0, 0, 0};
  EXPECT_TRUE(bits_equal(setup.context.registers.f32[1], expected));
}

TEST(AttentionOp, Case_B65_DecodeSeesTheSameKeysAsPrefill) {
  for (int64_t position = 0; position < 8; ++position) {
    WindowCase setup(1);
    auto* values = reinterpret_cast<float*>(setup.cache.values(0, 0, 0));
    std::fill_n(values, 16, 1e30f);  // later positions must not be read
    for (int64_t j = 0; j <= position; ++j) values[j] = static_cast<float>(j);
    setup.context.rows = {{0, position}};

    run_op(setup.program.ops[0], setup.context);

    const int64_t first = std::max<int64_t>(0, position - 3);
    const float mean = static_cast<float>(first + position) / 2.0f;
    EXPECT_FLOAT_EQ(setup.context.registers.f32[1][0], mean);
  }
}

}  // namespace
}  // namespace assay
