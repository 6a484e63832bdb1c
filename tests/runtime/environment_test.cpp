#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cfenv>

#include "convert/core/error.h"
#include "runtime/executor.h"
#include "runtime/float_environment.h"
#include "runtime/host_memory.h"

namespace assay {
namespace {

/// Puts the mode back whatever the test does.
struct KeepMxcsr {
  unsigned saved = _mm_getcsr();
  ~KeepMxcsr() { _mm_setcsr(saved); }
};

TEST(FloatEnvironment, TheUsualModeIsAccepted) { EXPECT_NO_THROW(check_float_environment()); }

TEST(FloatEnvironment, FlushingResultsIsRefused) {
  const KeepMxcsr keep;
  _mm_setcsr(keep.saved | 0x8000u);

  EXPECT_THROW(check_float_environment(), UnsupportedError);
}

TEST(FloatEnvironment, FlushingInputsIsRefused) {
  const KeepMxcsr keep;
  _mm_setcsr(keep.saved | 0x0040u);

  EXPECT_THROW(check_float_environment(), UnsupportedError);
}

TEST(FloatEnvironment, OtherRoundingsAreRefused) {
  for (const int mode : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    EXPECT_THROW(check_float_environment(), UnsupportedError);
    std::fesetround(FE_TONEAREST);
  }
}

TEST(HostMemory, SaysWhatIsAvailable) {
  const auto available = available_host_memory();

  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, uint64_t{1} << 20);
}

TEST(HostMemory, Case_B75_TooLittleNamesTheLargestItemsAndASmallerSetting) {
  const std::vector<LedgerItem> items = {
      {"weights BF16", 10u << 20}, {"kv cache", 1u << 30}, {"activations", 1u << 20}};
  const uint64_t enough = (10u << 20) + (1u << 30) + (1u << 20);
  EXPECT_NO_THROW(require_memory(items, enough, "m on cpu"));
  EXPECT_THROW(require_memory(items, enough - 1, "m on cpu"), ResourceError);

  try {
    require_memory(items, 1u << 29, "m on cpu");
    FAIL() << "accepted";
  } catch (const ResourceError& error) {
    EXPECT_STREQ(error.what(),
                 "m on cpu: needs 1.01 GiB, 512.00 MiB are available; largest: kv cache 1.00 GiB, "
                 "weights BF16 10.00 MiB, activations 1.00 MiB; try a smaller --context or "
                 "--kv-type f16");
  }
}

TEST(OpenDevice, RefusesUnknownWordsAndSaysWhyThePluginIsMissing) {
  EXPECT_EQ(open_device("cpu")->name(), "cpu");
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "CPU"}) {
    EXPECT_THROW(open_device(name), UsageError) << name;
  }
  setenv("ASSAY_CUDA_PLUGIN", "/nonexistent/libassay-cuda.so", 1);
  EXPECT_THROW(open_device("cuda:0"), DeviceError);
  unsetenv("ASSAY_CUDA_PLUGIN");
}

}  // namespace
}  // namespace assay
