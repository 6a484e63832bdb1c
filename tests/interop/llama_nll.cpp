// Scores token windows with llama.cpp: one prefill per window, the logits of all positions.
//   llama_nll MODEL.gguf WINDOWS.i32 N_WINDOWS LENGTH THREADS OUT.f32
// WINDOWS.i32 (n_windows, length) int32 as fed; OUT.f32 (n_windows, length − 1) fp32: row r is
// −log p(token r + 1 | tokens 0 … r), log-sum-exp in fp64. Tokens are fed as they are: this
// compares forward passes, not tokenizers. K and V in f16, llama.cpp's default.
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "llama_nll: %s\n", what);
  std::exit(3);
}

double nll_of(const float* logits, int32_t n_vocab, int32_t target) {
  const double most = *std::max_element(logits, logits + n_vocab);
  double sum = 0;
  for (int32_t i = 0; i < n_vocab; ++i) sum += std::exp(logits[i] - most);
  return std::log(sum) + most - logits[target];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) fail("expected MODEL WINDOWS N_WINDOWS LENGTH THREADS OUT");
  const int n_windows = std::atoi(argv[3]);
  const int length = std::atoi(argv[4]);
  const int threads = std::atoi(argv[5]);
  const auto n_ids = static_cast<size_t>(n_windows) * static_cast<size_t>(length);
  std::vector<int32_t> ids(n_ids);
  std::ifstream in(argv[2], std::ios::binary);
  in.read(reinterpret_cast<char*>(ids.data()),
          static_cast<std::streamsize>(n_ids * sizeof(int32_t)));
  if (!in) fail("the file of windows is too short");

  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) fail("the model does not load");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(length);
  params.n_batch = params.n_ubatch = params.n_ctx;
  params.n_threads = params.n_threads_batch = threads;
  llama_context* const context = llama_init_from_model(model, params);
  if (context == nullptr) fail("no context");
  const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

  std::vector<float> out;
  llama_batch batch = llama_batch_init(length, 0, 1);
  for (int w = 0; w < n_windows; ++w) {
    const int32_t* window = ids.data() + static_cast<size_t>(w) * static_cast<size_t>(length);
    llama_memory_clear(llama_get_memory(context), true);
    batch.n_tokens = length;
    for (int t = 0; t < length; ++t) {
      batch.token[t] = window[t];
      batch.pos[t] = t;
      batch.n_seq_id[t] = 1;
      batch.seq_id[t][0] = 0;
      batch.logits[t] = 1;
    }
    if (llama_decode(context, batch) != 0) fail("llama_decode failed");
    for (int t = 0; t + 1 < length; ++t) {
      const double nll = nll_of(llama_get_logits_ith(context, t), n_vocab, window[t + 1]);
      out.push_back(static_cast<float>(nll));
    }
  }
  std::ofstream file(argv[6], std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()),
             static_cast<std::streamsize>(out.size() * sizeof(float)));
  if (!file.flush()) fail("cannot write the result");
  std::printf("{\"version\": \"%s\"}\n", llama_version());
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  llama_backend_free();
  return 0;
}
