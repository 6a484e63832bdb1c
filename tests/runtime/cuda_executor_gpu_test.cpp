#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "runtime/cpu_executor.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_support.h"
#include "runtime/ops/nll.h"
#include "tests/support/bits_equal.h"
#include "tests/support/random.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay::cuda {
namespace {

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool has_gpu() { return gpu_count() > 0; }

/// What an environment variable names, separated by ':'.
std::vector<std::string> named_in(const char* variable) {
  std::vector<std::string> names;
  const char* value = std::getenv(variable);
  std::string rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    if (colon > 0) names.push_back(rest.substr(0, colon));
    rest.erase(0, std::min(colon + 1, rest.size()));
  }
  return names;
}

/// Models to compare on: the bundled one, and those of ASSAY_GPU_TEST_MODELS.
std::vector<std::string> model_paths() {
  std::vector<std::string> paths = named_in("ASSAY_GPU_TEST_MODELS");
  paths.insert(paths.begin(), test::source_path("tests/data/llama-tiny"));
  return paths;
}

class CudaExecutorTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
    checkpoint_ = Checkpoint::open(GetParam());
  }

  std::vector<int32_t> tokens(size_t n, uint64_t seed) const {
    test::Random random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids)
      id =
          static_cast<int32_t>(random.below(static_cast<uint64_t>(checkpoint_->spec().vocab_size)));
    return ids;
  }

  static std::vector<float> run(Executor& executor, const std::vector<int32_t>& ids, size_t chunk,
                                int sequence = 0) {
    executor.reset(sequence);
    std::vector<float> all, part;
    for (size_t i = 0; i < ids.size(); i += chunk) {
      const BatchItem item{sequence, std::span(ids).subspan(i, std::min(chunk, ids.size() - i)),
                           LogitRows::kAll};
      executor.forward({&item, 1}, part);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// First op whose visible result differs, for the message of a failed comparison.
  static std::string first_difference(Executor& expected, Executor& actual,
                                      const std::vector<int32_t>& ids) {
    struct Seen {
      std::string name;
      std::vector<float> values;
    };
    std::vector<Seen> host;
    std::string found = "no op differs in one pass";
    std::vector<float> logits;
    expected.reset(0);
    actual.reset(0);
    const BatchItem item{0, ids, LogitRows::kAll};
    expected.forward({&item, 1}, logits,
                     [&](const Op& op, const RegisterSpec&, std::span<const float> values) {
                       host.push_back({op.name, {values.begin(), values.end()}});
                     });
    bool done = false;
    actual.forward(
        {&item, 1}, logits, [&](const Op& op, const RegisterSpec&, std::span<const float> values) {
          if (done) return;
          const auto same = std::find_if(host.begin(), host.end(),
                                         [&](const Seen& s) { return s.name == op.name; });
          if (same == host.end() || same->values.size() != values.size()) return;
          const auto result = test::bits_equal(values, same->values);
          if (!result) {
            found = op.name + ": " + result.message();
            done = true;
          }
        });
    return found;
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
};

TEST_P(CudaExecutorTest, LogitsEqualTheHostBitForBitInEveryChunking) {
  for (const KvType kv : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    const ExecutorOptions options{.kv_type = kv, .n_sequences = 1, .context = 512};
    const auto host = make_cpu_device()->load(checkpoint_, options);
    CudaExecutor card(0, checkpoint_, options);
    const std::vector<int32_t> ids = tokens(300, 5);

    const std::vector<float> expected = run(*host, ids, 300);

    for (const size_t chunk :
         {size_t{1}, size_t{3}, size_t{4}, size_t{5}, size_t{64}, size_t{129}, size_t{300}}) {
      const std::vector<float> actual = run(card, ids, chunk);
      ASSERT_TRUE(test::bits_equal(actual, expected))
          << "chunk " << chunk << ", kv " << kv_type_name(kv)
          << "; first op: " << first_difference(*host, card, ids);
    }
  }
}

TEST_P(CudaExecutorTest, SequencesInOneBatchEqualThemselvesAlone) {
  const ExecutorOptions options{.n_sequences = 64, .context = 64};
  CudaExecutor card(0, checkpoint_, options);
  for (const int n : {1, 2, 3, 4, 5, 17, 64}) {
    std::vector<std::vector<int32_t>> prompts;
    for (int s = 0; s < n; ++s)
      prompts.push_back(tokens(static_cast<size_t>(5 + s % 7), static_cast<uint64_t>(s + 1)));
    std::vector<std::vector<float>> alone;
    for (int s = 0; s < n; ++s) alone.push_back(run(card, prompts[static_cast<size_t>(s)], 1, s));

    for (int s = 0; s < n; ++s) card.reset(s);
    std::vector<BatchItem> items;
    for (int s = 0; s < n; ++s)
      items.push_back({s, prompts[static_cast<size_t>(s)], LogitRows::kAll});
    std::vector<float> together;
    card.forward(items, together, nullptr);

    std::vector<float> expected;
    for (const auto& logits : alone) expected.insert(expected.end(), logits.begin(), logits.end());
    ASSERT_TRUE(test::bits_equal(together, expected)) << n << " sequences";
  }
}

TEST_P(CudaExecutorTest, DecodedIdsAndLastLogitsEqualTheHostInGraphAndEagerly) {
  for (const KvType kv : {KvType::kF16, KvType::kBF16, KvType::kF32}) {
    const ExecutorOptions options{.kv_type = kv, .n_sequences = 1, .context = 512};
    const auto host = make_cpu_device()->load(checkpoint_, options);
    CudaExecutor card(0, checkpoint_, options);
    for (const size_t n_prompt : {size_t{1}, size_t{126}, size_t{300}}) {
      constexpr int64_t kSteps = 140;
      const std::vector<int32_t> prompt = tokens(n_prompt, n_prompt);
      std::vector<float> expected_logits, logits;
      const auto decode = [&](Executor& executor) {
        executor.reset(0);
        const BatchItem item{0, prompt, LogitRows::kLast};
        executor.forward({&item, 1}, logits);
        return executor.decode_greedy(0, argmax(logits), kSteps);
      };
      const std::vector<int32_t> expected = decode(*host);
      std::vector<int32_t> fed = {argmax(logits)};
      fed.insert(fed.end(), expected.begin(), expected.end() - 1);
      host->reset(0);
      const std::vector<BatchItem> all = {{0, prompt, LogitRows::kNone},
                                          {0, fed, LogitRows::kLast}};
      host->forward(all, expected_logits);
      const auto expect_same = [&](const char* how) {
        EXPECT_EQ(decode(card), expected) << how << ", prompt of " << n_prompt;
        EXPECT_TRUE(test::bits_equal(card.last_logits(), expected_logits))
            << how << ", prompt of " << n_prompt << ", kv " << kv_type_name(kv);
      };

      card.set_eager(false);
      card.use_step_kernel(true);
      expect_same("one kernel");
      card.use_step_kernel(false);
      expect_same("a kernel per step");
      card.set_eager(true);
      expect_same("without a graph");
    }
  }
}

/// All devices hold the model at once and take turns, so that work meant for one of them while
/// another is current shows.
TEST_P(CudaExecutorTest, EveryDeviceGivesTheBitsOfTheFirst) {
  if (gpu_count() < 2) GTEST_SKIP() << "one CUDA device";
  const std::vector<int32_t> ids = tokens(140, 11);
  std::vector<std::unique_ptr<CudaExecutor>> cards;
  for (int index = 0; index < gpu_count(); ++index)
    cards.push_back(
        std::make_unique<CudaExecutor>(index, checkpoint_, ExecutorOptions{.context = 256}));
  for (const bool step_kernel : {true, false}) {
    for (const auto& card : cards) card->use_step_kernel(step_kernel);
    std::vector<std::vector<float>> logits;
    for (const auto& card : cards) logits.push_back(run(*card, ids, 33));
    std::vector<std::vector<int32_t>> decoded;
    for (const auto& card : cards) decoded.push_back(card->decode_greedy(0, 7, 100));
    for (size_t i = 1; i < cards.size(); ++i) {
      EXPECT_TRUE(test::bits_equal(logits[i], logits[0])) << "cuda:" << i;
      EXPECT_EQ(decoded[i], decoded[0]) << "cuda:" << i;
      EXPECT_TRUE(test::bits_equal(cards[i]->last_logits(), cards[0]->last_logits()))
          << "cuda:" << i;
    }
  }
}

TEST_P(CudaExecutorTest, LedgerIsWithinTwoPercentOfTheDriver) {
  size_t before = 0, after = 0, total = 0;
  static_cast<void>(cudaFree(nullptr));
  { CudaExecutor warm(0, checkpoint_, {.context = 128}); }
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  CudaExecutor card(0, checkpoint_, {.context = 4096});
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  uint64_t ledger = 0;
  for (const LedgerItem& item : card.ledger()) ledger += item.bytes;

  EXPECT_NEAR(static_cast<double>(before - after), static_cast<double>(ledger),
              0.02 * static_cast<double>(ledger) + (2 << 20));
}

/// Models that are too large for the tests above, of ASSAY_GPU_LARGE_MODELS.
TEST(CudaExecutorLarge, LogitsOf64DecodeStepsEqualTheHostBitForBit) {
  const std::vector<std::string> paths = named_in("ASSAY_GPU_LARGE_MODELS");
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  if (paths.empty()) GTEST_SKIP() << "ASSAY_GPU_LARGE_MODELS names no model";
  for (const std::string& path : paths) {
    constexpr size_t kSteps = 64;
    const ExecutorOptions options{.n_sequences = 1, .context = 256};
    const auto checkpoint = Checkpoint::open(path);
    std::vector<int32_t> fed = {1};
    std::vector<std::vector<float>> actual;
    {
      CudaExecutor card(0, checkpoint, options);
      while (actual.size() < kSteps) {
        fed.push_back(card.decode_greedy(0, fed.back(), 1).front());
        actual.push_back(card.last_logits());
      }
    }
    const auto host = make_cpu_device()->load(checkpoint, options);
    std::vector<float> expected;
    const BatchItem item{0, std::span(fed).first(kSteps), LogitRows::kAll};
    host->forward({&item, 1}, expected);

    const size_t vocab = actual[0].size();
    for (size_t i = 0; i < kSteps; ++i) {
      const auto row = std::span(expected).subspan(i * vocab, vocab);
      ASSERT_TRUE(test::bits_equal(actual[i], row)) << path << ", position " << i;
      EXPECT_EQ(argmax(row), fed[i + 1]) << path << ", position " << i;
    }
  }
}

/// Logits of a few tokens, all rows.
std::vector<float> logits_of(Executor& executor) {
  const std::vector<int32_t> ids = {5, 17, 300, 42, 5};
  const BatchItem item{0, ids, LogitRows::kAll};
  std::vector<float> logits;
  executor.forward({&item, 1}, logits);
  return logits;
}

TEST(CudaExecutor, RunsEveryPackingOfTheSameIntegersLikeTheHost) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  const test::TinyQuantization quantization{.symmetric = false, .scale_dtype = DType::kF16};
  const test::TinyModel plain = test::make_tiny_model({.hidden_size = 128});
  std::vector<std::pair<std::string, test::TinyModel>> models(4, {"compressed-tensors", plain});
  test::quantize_as_compressed_tensors(models[0].second, quantization);
  models[1].first = "GPTQ";
  test::quantize_as_gptq(models[1].second, quantization);
  models[2].first = "AWQ";
  test::quantize_as_awq(models[2].second, quantization);
  models[3] = {"GPTQ in activation order", models[1].second};
  test::set_group_index(models[3].second, [](int64_t k, int64_t, int64_t n_groups) {
    return static_cast<int32_t>(k % n_groups);
  });
  for (const auto& [name, model] : models) {
    const test::TemporaryDirectory folder;
    const auto checkpoint = Checkpoint::open(model.write(folder.file("model")));
    CudaExecutor card(0, checkpoint, {.context = 64});
    const auto host = make_cpu_device()->load(checkpoint, {.context = 64});

    EXPECT_TRUE(test::bits_equal(logits_of(card), logits_of(*host))) << name;
  }
}

TEST(CudaExecutor, ADeviceThatIsNotThereIsNamedWithThoseThatAre) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  int count = 0;
  ASSAY_CUDA(cudaGetDeviceCount(&count));
  const auto checkpoint = Checkpoint::open(test::source_path("tests/data/llama-tiny"));
  for (const int index : {count, -1}) {
    try {
      CudaExecutor card(index, checkpoint, {.context = 64});
      FAIL() << "accepted";
    } catch (const DeviceError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("index " + std::to_string(index)), std::string::npos) << message;
      EXPECT_NE(message.find(count == 1 ? "one, cuda:0" : std::to_string(count) + ", cuda:0 to"),
                std::string::npos)
          << message;
    }
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// The bundled model with the first weight of one of its norms as large as can be.
std::shared_ptr<const Checkpoint> spoiled_model(const test::TemporaryDirectory& folder) {
  namespace fs = std::filesystem;
  const fs::path from = test::source_path("tests/data/llama-tiny");
  for (const auto& entry : fs::directory_iterator(from))
    fs::copy_file(entry.path(), fs::path(folder.path()) / entry.path().filename());
  const std::string path = folder.file("model.safetensors");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_size = 0;
  file.read(reinterpret_cast<char*>(&header_size), 8);
  std::string header(header_size, 0);
  file.read(header.data(), static_cast<std::streamsize>(header_size));
  const size_t tensor = header.find("\"model.layers.1.post_attention_layernorm.weight\"");
  const size_t offsets = header.find("data_offsets\":[", tensor) + 15;
  file.seekp(static_cast<std::streamoff>(8 + header_size + std::stoull(header.substr(offsets))));
  file.write("\x7f\x7f", 2);  // the largest bf16: finite, but nothing that can be quantized
  file.close();
  return Checkpoint::open(folder.path());
}

TEST(CudaExecutorFaults, ANumberTooLargeInADecodeStepNamesOpAndLayer) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device";
  const test::TemporaryDirectory folder;
  CudaExecutor card(0, spoiled_model(folder), {.context = 64});
  for (const bool one_kernel : {true, false}) {
    card.use_step_kernel(one_kernel);
    try {
      card.decode_greedy(0, 1, 2);
      FAIL() << "accepted";
    } catch (const NumericError& error) {
      EXPECT_NE(std::string(error.what()).find("layers.1.mlp"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("layer 1"), std::string::npos) << error.what();
    }
    EXPECT_EQ(card.length(0), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaExecutorTest, testing::ValuesIn(model_paths()),
                         [](const auto& model) { return "model" + std::to_string(model.index); });

}  // namespace
}  // namespace assay::cuda
