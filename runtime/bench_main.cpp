#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "convert/core/isa.h"
#include "convert/core/parallel.h"
#include "convert/core/sha256.h"
#include "convert/core/version.h"
#include "runtime/commands.h"
#include "runtime/decoder.h"
#include "runtime/run_options.h"

namespace assay::cli {
namespace {

/// What is measured.
struct Plan {
  bool decode = true;  // else prefill
  int64_t n_tokens = 0;
  int64_t depth = 0;  // tokens that the cache holds before
  int64_t repeats = 0;
};

struct Measurement {
  std::vector<double> seconds;  // per repeat, ascending
  std::string logits_sha256;    // of the last logits, equal in every repeat
  double median() const {
    const size_t n = seconds.size();
    return n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2.0;
  }
};

/// Token ids that depend on the count alone.
std::vector<int32_t> bench_tokens(int64_t n, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t word = philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {0, 0})[0];
    ids[i] = static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

/// One run on an empty sequence: fills the cache up to the depth, then times the rest. Decoding
/// feeds the first token after the depth, then its own greedy choices; `logits` are those that
/// follow the last token.
double time_once(Executor& executor, const Plan& plan, std::span<const int32_t> ids,
                 std::vector<float>& logits) {
  using Clock = std::chrono::steady_clock;
  executor.reset(0);
  const auto depth = static_cast<size_t>(plan.depth);
  if (depth > 0) {
    const BatchItem fill{0, ids.first(depth), LogitRows::kNone};
    executor.forward(std::span(&fill, 1), logits);
  }
  const auto start = Clock::now();
  if (!plan.decode) {
    const BatchItem item{0, ids.subspan(depth), LogitRows::kLast};
    executor.forward(std::span(&item, 1), logits);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  const std::vector<int32_t> generated = executor.decode_greedy(0, ids[depth], plan.n_tokens);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const BatchItem item{0, std::span(generated).last(1), LogitRows::kLast};
  executor.forward(std::span(&item, 1), logits);
  return seconds;
}

/// The result is checked before the time is believed: every repeat must give the same bits.
Measurement measure(Executor& executor, const Plan& plan, Terminal& terminal) {
  const auto ids = bench_tokens(plan.depth + plan.n_tokens, executor.program().spec.vocab_size);
  std::vector<float> logits;
  Measurement result;
  const auto progress = terminal.progress("measuring", static_cast<double>(plan.repeats + 1));
  for (int64_t repeat = 0; repeat <= plan.repeats; ++repeat) {  // the first one warms up
    const double seconds = time_once(executor, plan, ids, logits);
    const std::string hash = sha256_hex(std::as_bytes(std::span(logits)));
    if (repeat == 0) {
      result.logits_sha256 = hash;
    } else {
      result.seconds.push_back(seconds);
    }
    if (hash != result.logits_sha256) {
      throw NumericError(
          "two runs gave different logits; this is a fault of assay or of the "
          "machine, please report it");
    }
    progress->update(static_cast<double>(repeat + 1), "repeat");
    if (stop_requested()) throw StoppedError("stopped before the measurement was complete");
  }
  std::sort(result.seconds.begin(), result.seconds.end());
  return result;
}

/// Bytes of matrices that one decode step reads.
uint64_t weight_bytes(const Executor& executor) {
  uint64_t bytes = 0;
  for (const LedgerItem& item : executor.ledger()) {
    if (item.name.starts_with("weights")) bytes += item.bytes;
  }
  return bytes;
}

/// Bytes of keys and values that a decode step reads on average.
double cache_bytes(const Executor& executor, const Plan& plan) {
  const double mean_length =
      static_cast<double>(plan.depth) + (static_cast<double>(plan.n_tokens) + 1.0) / 2.0;
  const auto per_position = static_cast<double>(
      KvCache::bytes(executor.program().cache_layers, executor.options().kv_type, 1, 1));
  return mean_length * per_position;
}

/// Multiplications of the linears per prompt token, without the head.
double products_per_token(const Program& program) {
  double products = 0.0;
  for (const MatrixSlot& slot : program.matrices) {
    if (slot.layer < 0) continue;
    products += static_cast<double>(slot.out_features) * static_cast<double>(slot.in_features);
  }
  return products;
}

Json bench_json(Executor& executor, const Plan& plan, const Measurement& run) {
  const auto n = static_cast<double>(plan.n_tokens);
  Json result = Json::object();
  result.set("what", plan.decode ? "decode" : "prefill").set("arithmetic", kArithmetic);
  result.set("device", executor.device_name()).set("isa", isa_name(active_isa()));
  result.set("threads", int64_t{n_threads()});
  result.set("kv_type", kv_type_name(executor.options().kv_type));
  result.set("tokens", plan.n_tokens).set("depth", plan.depth).set("repeats", plan.repeats);
  result.set("tokens_per_s", n / run.median());
  result.set("tokens_per_s_min", n / run.seconds.back());
  result.set("tokens_per_s_max", n / run.seconds.front());
  result.set("logits_sha256", run.logits_sha256);
  if (plan.decode) {
    const double bytes = static_cast<double>(weight_bytes(executor)) + cache_bytes(executor, plan);
    const double bytes_per_s = bytes * n / run.median();
    result.set("bytes_per_token", bytes).set("gb_per_s", bytes_per_s * 1e-9);
    if (const auto bound = executor.measure_read_bandwidth()) {
      result.set("read_bandwidth_gb_per_s", *bound * 1e-9);
      result.set("percent_of_read_bandwidth", 100.0 * bytes_per_s / *bound);
    }
  } else {
    const double products = products_per_token(executor.program()) * n;
    result.set("giga_products_per_s", products / run.median() * 1e-9);
  }
  return result;
}

/// Every node of one decode step with its time and, against the bound, its bytes.
Json nodes_json(Executor& executor, double read_bandwidth) {
  Json nodes = Json::array();
  for (const NodeTime& node : executor.time_decode_nodes(0, 20)) {
    Json row = Json::object();
    row.set("name", node.name).set("microseconds", node.microseconds);
    row.set("bytes", static_cast<int64_t>(node.bytes));
    if (read_bandwidth > 0)
      row.set("percent_of_read_bandwidth", 100.0 * static_cast<double>(node.bytes) /
                                               (node.microseconds * 1e-6) / (read_bandwidth * 1e9));
    nodes.push(std::move(row));
  }
  return nodes;
}

std::string nodes_text(const Json& result) {
  std::string text;
  for (const Json& node : result.at("nodes").as_array()) {
    text += fmt::format("{:9.2f} us {:10.3f} MB", node.at("microseconds").as_number(),
                        static_cast<double>(node.at("bytes").as_integer()) * 1e-6);
    if (const Json* share = node.find("percent_of_read_bandwidth"))
      text += fmt::format(" {:6.1f} %", share->as_number());
    text += fmt::format("  {}\n", node.at("name").as_string());
  }
  return text;
}

std::string bench_text(const Json& result) {
  const auto number = [&](const char* key) { return result.at(key).as_number(); };
  std::string text = fmt::format(
      "{} of {} tokens after {}: {:.2f} tokens/s (median of {}, {:.2f} to {:.2f})\n",
      result.at("what").as_string(), result.at("tokens").as_integer(),
      result.at("depth").as_integer(), number("tokens_per_s"), result.at("repeats").as_integer(),
      number("tokens_per_s_min"), number("tokens_per_s_max"));
  if (result.find("gb_per_s") != nullptr) {
    text +=
        fmt::format("reads {:.2f} GB/s, {:.1f} % of the measured {:.2f} GB/s\n", number("gb_per_s"),
                    number("percent_of_read_bandwidth"), number("read_bandwidth_gb_per_s"));
  } else {
    text += fmt::format("{:.2f} giga products/s in the linears\n", number("giga_products_per_s"));
  }
  text +=
      fmt::format("{}, {}, {} threads, kv {}, logits sha256 {}\n", result.at("device").as_string(),
                  result.at("isa").as_string(), result.at("threads").as_integer(),
                  result.at("kv_type").as_string(), result.at("logits_sha256").as_string());
  return text;
}

ExitCode run_bench(const Arguments& arguments, Terminal& terminal) {
  const std::string what = arguments.text("WHAT");
  if (what != "decode" && what != "prefill") {
    throw UsageError(fmt::format("WHAT: expected decode or prefill, found \"{}\"", what));
  }
  Plan plan;
  plan.decode = what == "decode";
  if (!plan.decode && arguments.flag("nodes")) {
    throw UsageError("--nodes belongs to bench decode");
  }
  plan.n_tokens = arguments.given("tokens") ? arguments.integer("tokens") : plan.decode ? 64 : 512;
  plan.depth = arguments.integer("depth");
  plan.repeats = arguments.integer("repeats");
  const auto checkpoint = open_checkpoint(arguments.text("MODEL"), terminal);
  // Decoding feeds one token more than it times, for the logits that are compared.
  const auto executor =
      load_model(arguments, checkpoint, plan.depth + plan.n_tokens, plan.decode ? 1 : 0, terminal);

  const Measurement run = measure(*executor, plan, terminal);
  Json result = bench_json(*executor, plan, run);
  if (arguments.flag("nodes")) {
    const Json* bound = result.find("read_bandwidth_gb_per_s");
    result.set("nodes", nodes_json(*executor, bound == nullptr ? 0.0 : bound->as_number()));
  }
  if (terminal.json()) {
    terminal.print(result.dump() + "\n");
  } else {
    terminal.print(bench_text(result) + (arguments.flag("nodes") ? nodes_text(result) : ""));
  }
  return ExitCode::kDone;
}

std::vector<Option> bench_command_options() {
  std::vector<Option> options = {
      {.name = "tokens",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .help = "Tokens per repeat; by default 64 for decode and 512 for prefill.",
       .group = "Measurement",
       .minimum = 1,
       .maximum = 1 << 30},
      {.name = "depth",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "0",
       .help = "Tokens that the KV cache holds before the clock starts.",
       .group = "Measurement",
       .minimum = 0,
       .maximum = 1 << 30},
      {.name = "repeats",
       .short_name = 'r',
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "5",
       .help = "Timed repeats after one that warms up; the median counts.",
       .group = "Measurement",
       .minimum = 1},
      {.name = "nodes",
       .kind = ValueKind::kFlag,
       .help = "Also list the time and bytes of every node of one decode step; devices that decode "
               "without nodes list none.",
       .group = "Measurement"},
  };
  for (Option& option : model_run_options()) options.push_back(std::move(option));
  return options;
}

}  // namespace

const Command& bench_command() {
  static const Command command = {
      .name = "bench",
      .brief = "Measure decoding or prefill of a model",
      .description =
          "Measures tokens per second: of a prompt of fixed token ids, or of greedy decoding from "
          "a "
          "fixed token. Every repeat must give the same logits, bit for bit, or the run fails. "
          "Decoding is compared with the read bandwidth of the device, measured on the spot.",
      .positionals = {{.name = "WHAT", .help = "decode (one token at a time) or prefill."},
                      {.name = "MODEL", .help = "Folder or GGUF file."}},
      .options = bench_command_options(),
      .examples = {{"assay bench decode tests/data/llama-tiny",
                    "Tokens per second, GB/s and percent of the read bandwidth."},
                   {"assay bench prefill tests/data/llama-tiny --tokens 512 --threads 2 --json",
                    "A prompt of 512 tokens on two threads, as JSON."}},
      .run = run_bench,
  };
  return command;
}

}  // namespace assay::cli
