#include "calibrate/walk.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "convert/core/error.h"
#include "runtime/math.h"

namespace assay {
namespace {

/// What the ops of a segment keep: every other layer has no heads, so no bytes.
struct SegmentCache {
  std::vector<CacheLayerSpec> layers;
  std::vector<StateLayerSpec> states;
};

SegmentCache cache_of(const Program& program, const Segment& segment) {
  SegmentCache cache;
  cache.layers.resize(program.cache_layers.size());
  cache.states.resize(program.state_layers.size());
  for (int i = segment.begin; i < segment.end; ++i) {
    const Uses used = uses(program.ops[static_cast<size_t>(i)]);
    if (used.cache_written >= 0) {
      const auto layer = static_cast<size_t>(used.cache_written);
      cache.layers[layer] = program.cache_layers[layer];
    }
    if (used.state >= 0) {
      const auto layer = static_cast<size_t>(used.state);
      cache.states[layer] = program.state_layers[layer];
    }
  }
  return cache;
}

/// body(first, n) for the tokens in pieces that are packed at once.
template <class Body>
void for_pieces(int64_t n_tokens, const Body& body) {
  for (int64_t first = 0; first < n_tokens; first += PackedTokens::kMostTokens) {
    body(first, std::min(PackedTokens::kMostTokens, n_tokens - first));
  }
}

void scale(CrossProduct& product, double factor) {
  for (double& value : product.values) value *= factor;
}

}  // namespace

/// One register, some windows of a batch at a time; what lies on disk is read once if they ascend.
class StreamWalk::Rows {
 public:
  Rows(const StreamWalk& walk, Register r) : walk_(walk), register_(r) {}

  const float* of(int64_t first_window) {
    const int64_t batch = first_window / walk_.windows_per_batch();
    if (batch != batch_) values_ = walk_.values(register_).view(batch, scratch_);
    batch_ = batch;
    const int64_t row = first_window % walk_.windows_per_batch() * walk_.windows_->window_length;
    return values_.data() + row * walk_.columns_of(register_);
  }

 private:
  const StreamWalk& walk_;
  Register register_;
  int64_t batch_ = -1;
  std::span<const float> values_;
  std::vector<float> scratch_;
};

/// One register in the 16-bit stream less that in the quantized one, and its products with what the
/// quantized one has packed.
class StreamWalk::Difference {
 public:
  Difference(const StreamWalk& plain, const StreamWalk& quantized, Register r)
      : plain_(plain),
        quantized_(quantized),
        plain_rows_(plain, r),
        rows_(quantized, r),
        columns_(quantized.columns_of(r)) {}

  /// Before add(): false if the difference is zero. Throws NumericError if it is not finite.
  bool start(const PackedTokens& packed, const std::string& name) {
    ChannelMaxima maxima(columns_);
    for (int64_t i = 0; i < plain_.n_windows(); ++i) {
      take(i, spread_index(i, quantized_.n_windows(), plain_.n_windows()), 1);
      maxima.add(values_.data(), quantized_.windows_->window_length);
    }
    if (const int64_t channel = maxima.find_fault(); channel >= 0) {
      throw NumericError(name + ": the two streams differ by " +
                         std::to_string(maxima.maximum(channel)) + " in channel " +
                         std::to_string(channel));
    }
    if (maxima.all_zero()) return false;
    gram_.emplace(maxima.exponents(), packed);
    return true;
  }

  /// Some windows of a batch, from these on in the two streams.
  void take(int64_t plain_window, int64_t window, int64_t n_windows) {
    const float* x = plain_rows_.of(plain_window);
    const float* y = rows_.of(window);
    values_.resize(static_cast<size_t>(n_windows * quantized_.windows_->window_length * columns_));
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = x[i] - y[i];
  }
  /// Rows from `first` on of those that were taken last.
  void add(int64_t first) { gram_->add(values_.data() + first * columns_); }

  CrossProduct finish() {
    CrossProduct product = gram_->finish();
    scale(product, quantized_.scale_from(plain_));
    return product;
  }

 private:
  const StreamWalk& plain_;
  const StreamWalk& quantized_;
  Rows plain_rows_;
  Rows rows_;
  int64_t columns_;
  std::vector<float> values_;
  std::optional<CrossGram> gram_;
};

StreamWalk::StreamWalk(const Program& program, const CpuWeights& weights,
                       const TokenWindows& windows, const WalkOptions& options,
                       ActivationMemory& memory)
    : program_(&program),
      weights_(&weights),
      windows_(&windows),
      options_(options),
      memory_(&memory),
      context_(std::make_shared<CpuContext>()) {
  cut_batches();
  context_->registers.f32.resize(program.registers.size());
}

void StreamWalk::cut_batches() {
  const int64_t together = std::max<int64_t>(1, options_.batch_tokens / windows_->window_length);
  batches_.clear();
  for (int64_t w = 0; w < windows_->n_windows; w += together) {
    batches_.push_back({w, std::min(together, windows_->n_windows - w)});
  }
}

StreamWalk StreamWalk::beside(const CpuWeights& weights, const TokenWindows& windows) const {
  StreamWalk other = fork(weights);
  other.windows_ = &windows;
  other.cut_batches();
  other.stores_.clear();
  return other;
}

int64_t StreamWalk::batch_rows(int64_t batch) const {
  return batches_[static_cast<size_t>(batch)].n_windows * windows_->window_length;
}

void StreamWalk::embed() {
  const int begin = program_->layers.front().begin;
  const LayerPlan plan =
      plan_ops(*program_, -1, {0, begin}, [](const MatrixSlot&) { return false; });
  run_ops(plan.segments.front(), {}, 1, nullptr);
}

void StreamWalk::run_segment(const LayerPlan& plan, size_t index,
                             const std::function<void(double)>& progress) {
  const bool at_stop = index < plan.stops.size();
  const Register captured = at_stop ? plan.stops[index].input : Register{};
  if (at_stop) maxima_ = std::make_shared<ChannelMaxima>(plan.stops[index].columns);
  run_ops(plan.segments[index], captured, at_stop ? plan.stops[index].slots : 1, progress);
}

void StreamWalk::run_ops(const Segment& segment, Register captured, int slots,
                         const std::function<void(double)>& progress) {
  context_->weights = weights_;
  std::map<int, std::shared_ptr<ActivationStore>> written;
  for (const Register r : segment.stores) {
    written[r.index] = std::make_shared<ActivationStore>(*memory_, n_batches());
  }
  const bool captured_here = written.contains(captured.index);
  for (int64_t b = 0; b < n_batches(); ++b) {
    prepare_batch(segment, b);
    run_range(segment.begin, segment.end);
    for (const Register r : segment.stores) {
      std::vector<float>& values = context_->registers.f32[static_cast<size_t>(r.index)];
      const int64_t columns = program_->registers[static_cast<size_t>(r.index)].columns;
      values.resize(static_cast<size_t>(batch_rows(b) * columns));
      if (r == captured) maxima_->add(values.data(), batch_rows(b) * slots);
      const size_t size = values.size();
      keep_spare(written[r.index]->put(b, std::move(values)));
      values = take_spare(size);
    }
    if (progress) progress(static_cast<double>(b + 1) / static_cast<double>(n_batches()));
  }
  for (std::vector<float>& spare : spare_) spare = {};
  for (const Register r : segment.drops) stores_.erase(r.index);
  for (auto& [index, store] : written) stores_[index] = std::move(store);
  if (captured.index < 0 || captured_here) return;
  // A vector that an earlier segment made: its maxima are taken from the store.
  std::vector<float> scratch;
  for (int64_t b = 0; b < n_batches(); ++b) {
    maxima_->add(values(captured).view(b, scratch).data(), batch_rows(b) * slots);
  }
}

void StreamWalk::run_range(int begin, int end) {
  for (int i = begin; i < end; ++i) run_op(program_->ops[static_cast<size_t>(i)], *context_);
}

std::vector<float> StreamWalk::logits(int64_t batch, int64_t first_row, int64_t n_rows) {
  const int begin = program_->layers.back().end;
  const auto end = static_cast<int>(program_->ops.size());
  int selection = begin;
  while (
      !std::holds_alternative<SelectRowsOp>(program_->ops[static_cast<size_t>(selection)].kind)) {
    ++selection;
  }
  Segment segment;
  segment.begin = begin;
  segment.end = selection + 1;
  segment.loads = live_before(*program_, begin);
  context_->weights = weights_;
  prepare_batch(segment, batch);
  context_->selected_rows.resize(static_cast<size_t>(n_rows));
  std::iota(context_->selected_rows.begin(), context_->selected_rows.end(), first_row);
  run_range(begin, selection + 1);
  prepare_registers(*program_, selection + 1, end, n_rows, *context_);
  run_range(selection + 1, end);
  const auto index = static_cast<size_t>(program_->logits.index);
  const int64_t columns = program_->registers[index].columns;
  std::vector<float> out = std::exchange(context_->registers.f32[index], {});
  out.resize(static_cast<size_t>(n_rows * columns));
  return out;
}

void StreamWalk::replay(int begin, int end, int64_t batch,
                        const std::function<void(int op, const CpuContext& context)>& before) {
  Segment segment;
  segment.begin = begin;
  segment.end = end;
  for (const Register r : live_before(*program_, begin)) {
    if (stores_.contains(r.index)) segment.loads.push_back(r);
  }
  context_->weights = weights_;
  prepare_batch(segment, batch);
  for (int op = begin; op < end; ++op) {
    before(op, *context_);
    run_op(program_->ops[static_cast<size_t>(op)], *context_);
  }
}

std::vector<float> StreamWalk::take_spare(size_t size) {
  for (std::vector<float>& spare : spare_) {
    // What is kept counts by its size, so memory that is much larger does not serve.
    if (spare.capacity() >= size && spare.capacity() - size <= size / 8) {
      return std::exchange(spare, {});
    }
  }
  return {};
}

void StreamWalk::keep_spare(std::vector<float> values) {
  if (values.capacity() == 0) return;
  std::move_backward(spare_.begin(), spare_.end() - 1, spare_.end());
  spare_.front() = std::move(values);
}

void StreamWalk::prepare_batch(const Segment& segment, int64_t index) {
  const Batch& batch = batches_[static_cast<size_t>(index)];
  const int64_t length = windows_->window_length;
  CpuContext& context = *context_;
  for (const Register r : segment.loads) {
    const std::shared_ptr<ActivationStore>& store = stores_.at(r.index);
    std::vector<float>& values = context.registers.f32[static_cast<size_t>(r.index)];
    const bool dropped =
        std::find(segment.drops.begin(), segment.drops.end(), r) != segment.drops.end();
    if (dropped && store.use_count() == 1) {
      keep_spare(store->take(index, values));
    } else {
      std::vector<float> scratch;
      const std::span<const float> kept = store->view(index, scratch);
      values.assign(kept.begin(), kept.end());
    }
  }
  prepare_registers(*program_, segment.begin, segment.end, batch_rows(index), context);
  context.rows.clear();
  context.token_ids.clear();
  for (int64_t w = 0; w < batch.n_windows; ++w) {
    const std::span<const int32_t> ids = windows_->window(batch.first_window + w);
    for (int64_t t = 0; t < length; ++t) {
      context.rows.push_back({static_cast<int>(w), t});
      context.token_ids.push_back(ids[static_cast<size_t>(t)]);
    }
  }
  context.cache = &cache_for(segment, batches_.front().n_windows);
}

KvCache& StreamWalk::cache_for(const Segment& segment, int64_t n_sequences) {
  if (cache_ == nullptr || segment.begin != cache_begin_) {
    const SegmentCache specs = cache_of(*program_, segment);
    cache_ =
        std::make_shared<KvCache>(specs.layers, options_.kv_type, static_cast<int>(n_sequences),
                                  windows_->window_length, specs.states);
    cache_begin_ = segment.begin;
  }
  for (int sequence = 0; sequence < n_sequences; ++sequence) cache_->reset(sequence);
  return *cache_;
}

void StreamWalk::check_captured(const CaptureStop& stop, const std::string& name) const {
  const int64_t channel = maxima_->find_fault();
  if (channel < 0) return;
  std::vector<float> scratch;
  for (int64_t b = 0; b < n_batches(); ++b) {
    const std::span<const float> x = values(stop.input).view(b, scratch);
    for (int64_t i = 0; i < batch_rows(b) * stop.slots; ++i) {
      const float value = x[static_cast<size_t>(i * stop.columns + channel)];
      if (std::fabs(value) <= 32639.0f * 0x1p100f) continue;
      const int64_t row = i / stop.slots;
      const int64_t window =
          batches_[static_cast<size_t>(b)].first_window + row / windows_->window_length;
      throw NumericError(name + ": calibration input is " + std::to_string(value) + " in window " +
                         std::to_string(window) + ", position " +
                         std::to_string(row % windows_->window_length) + ", channel " +
                         std::to_string(channel));
    }
  }
}

StopProducts StreamWalk::products(const CaptureStop& stop, const std::string& name,
                                  const StreamWalk* plain, bool residual,
                                  const std::function<void(double)>& progress) const {
  check_captured(stop, name);
  Gram gram(maxima_->exponents());
  std::optional<Difference> drift;
  std::optional<Difference> residual_drift;
  if (plain != nullptr) {
    plain->check_captured(stop, name);
    if (!drift.emplace(*plain, *this, stop.input).start(gram.packed(), name)) drift.reset();
  }
  if (drift && residual && stop.adds_to.index >= 0) {
    residual_drift.emplace(*plain, *this, stop.adds_to);
    if (!residual_drift->start(gram.packed(), name + ", output")) residual_drift.reset();
  }
  const bool some = drift && plain->n_windows() < n_windows();
  const int64_t step = some ? 1 : windows_per_batch();
  int64_t plain_window = 0;
  Rows rows(*this, stop.input);
  for (int64_t window = 0; window < n_windows(); window += step) {
    const int64_t n = std::min(step, n_windows() - window);
    const float* y = rows.of(window);
    const bool both = drift && plain_window < plain->n_windows() &&
                      spread_index(plain_window, n_windows(), plain->n_windows()) == window;
    if (both) {
      drift->take(plain_window, window, n);
      if (residual_drift) residual_drift->take(plain_window, window, n);
      plain_window += n;
    }
    for_pieces(n * windows_->window_length, [&](int64_t first, int64_t n_tokens) {
      gram.add(y + first * stop.columns, n_tokens);
      if (both) drift->add(first);
      if (both && residual_drift) residual_drift->add(first);
    });
    if (progress) progress(static_cast<double>(window + n) / static_cast<double>(n_windows()));
  }
  StopProducts out;
  if (residual_drift) out.residual_drift = residual_drift->finish();
  if (drift) out.drift = drift->finish();
  out.hessian = gram.finish();
  return out;
}

double StreamWalk::scale_from(const StreamWalk& some) const {
  return static_cast<double>(n_windows()) / static_cast<double>(some.n_windows());
}

std::vector<int64_t> StreamWalk::routed_counts(const CaptureStop& stop, int n_experts) const {
  std::vector<int64_t> counts(static_cast<size_t>(n_experts), 0);
  std::vector<float> scratch;
  for (int64_t b = 0; b < n_batches(); ++b) {
    for (const float id : values(stop.routes).view(b, scratch)) ++counts[static_cast<size_t>(id)];
  }
  return counts;
}

StreamWalk::RoutedBatch StreamWalk::routed_batch(const CaptureStop& stop, int64_t batch,
                                                 RoutedScratch& scratch) const {
  return {values(stop.input).view(batch, scratch.values),
          values(stop.routes).view(batch, scratch.ids),
          static_cast<size_t>(program_->registers[static_cast<size_t>(stop.routes.index)].columns),
          static_cast<size_t>(stop.columns), stop.slots > 1};
}

std::span<const float> StreamWalk::RoutedBatch::row_of(size_t token, int expert) const {
  const auto own = ids.subspan(token * top_k, top_k);
  const auto found = std::find(own.begin(), own.end(), static_cast<float>(expert));
  if (found == own.end()) return {};
  const auto slot = static_cast<size_t>(found - own.begin());
  return values.subspan((row_per_slot ? token * top_k + slot : token) * columns, columns);
}

void StreamWalk::for_routed_rows(const CaptureStop& stop, int expert,
                                 const std::function<void(const float*, int64_t)>& body) const {
  RoutedScratch scratch;
  std::vector<float> rows;
  for (int64_t b = 0; b < n_batches(); ++b) {
    const RoutedBatch batch = routed_batch(stop, b, scratch);
    rows.clear();
    for (size_t token = 0; token < static_cast<size_t>(batch_rows(b)); ++token) {
      const auto row = batch.row_of(token, expert);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    if (!rows.empty()) body(rows.data(), static_cast<int64_t>(rows.size()) / stop.columns);
  }
}

Hessian StreamWalk::routed_hessian(const CaptureStop& stop, int expert,
                                   const std::string& name) const {
  check_captured(stop, name);
  ChannelMaxima maxima(stop.columns);
  for_routed_rows(stop, expert, [&](const float* x, int64_t n) { maxima.add(x, n); });
  Gram gram(maxima.exponents());
  for_routed_rows(stop, expert, [&](const float* x, int64_t n) { gram.add(x, n); });
  return gram.finish();
}

void StreamWalk::for_common_rows(
    const StreamWalk& plain, const CaptureStop& stop, int expert,
    const std::function<void(const float*, const float*, int64_t)>& body) const {
  struct Side {
    RoutedScratch scratch;
    RoutedBatch batch;
    int64_t index = -1;
    int64_t first_row = 0;
  };
  const int64_t length = windows_->window_length;
  const auto go_to = [&](const StreamWalk& walk, int64_t window, Side& side) {
    const int64_t index = window / walk.windows_per_batch();
    if (index != side.index) side.batch = walk.routed_batch(stop, index, side.scratch);
    side.index = index;
    side.first_row = window % walk.windows_per_batch() * length;
  };
  Side there;
  Side here;
  std::vector<float> x;
  std::vector<float> y;
  for (int64_t i = 0; i < plain.n_windows(); ++i) {
    go_to(plain, i, there);
    go_to(*this, spread_index(i, n_windows(), plain.n_windows()), here);
    x.clear();
    y.clear();
    for (int64_t t = 0; t < length; ++t) {
      const auto x_row = there.batch.row_of(static_cast<size_t>(there.first_row + t), expert);
      const auto y_row = here.batch.row_of(static_cast<size_t>(here.first_row + t), expert);
      if (x_row.empty() || y_row.empty()) continue;
      for (size_t c = 0; c < y_row.size(); ++c) x.push_back(x_row[c] - y_row[c]);
      y.insert(y.end(), y_row.begin(), y_row.end());
    }
    if (!x.empty()) body(x.data(), y.data(), static_cast<int64_t>(x.size()) / stop.columns);
  }
}

CrossProduct StreamWalk::routed_drift(const StreamWalk& plain, const CaptureStop& stop, int expert,
                                      const std::string& name) const {
  check_captured(stop, name);
  plain.check_captured(stop, name);
  ChannelMaxima x_maxima(stop.columns);
  ChannelMaxima y_maxima(stop.columns);
  for_common_rows(plain, stop, expert, [&](const float* x, const float* y, int64_t n) {
    x_maxima.add(x, n);
    y_maxima.add(y, n);
  });
  PackedTokens columns(y_maxima.exponents());
  CrossGram cross(x_maxima.exponents(), columns);
  for_common_rows(plain, stop, expert, [&](const float* x, const float* y, int64_t n_rows) {
    for_pieces(n_rows, [&](int64_t first, int64_t n) {
      columns.pack(y + first * stop.columns, n);
      cross.add(x + first * stop.columns);
    });
  });
  CrossProduct drift = cross.finish();
  scale(drift, scale_from(plain));
  return drift;
}

std::vector<int> StreamWalk::held_registers() const {
  std::vector<int> out;
  for (const auto& [index, store] : stores_) out.push_back(index);
  return out;
}

void StreamWalk::save(const std::function<void(std::span<const float>)>& sink) const {
  std::vector<float> scratch;
  for (const auto& [index, store] : stores_) {
    for (int64_t b = 0; b < n_batches(); ++b) sink(store->view(b, scratch));
  }
}

bool StreamWalk::can_restore(const std::vector<int>& registers) const {
  const std::vector<RegisterSpec>& specs = program_->registers;
  for (size_t i = 0; i < registers.size(); ++i) {
    const int r = registers[i];
    if (r < 0 || static_cast<size_t>(r) >= specs.size()) return false;
    if (specs[static_cast<size_t>(r)].block_int16) return false;
    if (i > 0 && registers[i - 1] >= r) return false;
  }
  return std::find(registers.begin(), registers.end(), program_->residual.index) != registers.end();
}

void StreamWalk::restore(const std::vector<int>& registers,
                         const std::function<void(std::span<float>)>& source) {
  stores_.clear();
  for (const int index : registers) {
    auto store = std::make_shared<ActivationStore>(*memory_, n_batches());
    const int64_t columns = program_->registers[static_cast<size_t>(index)].columns;
    for (int64_t b = 0; b < n_batches(); ++b) {
      std::vector<float> values(static_cast<size_t>(batch_rows(b) * columns));
      source(values);
      store->put(b, std::move(values));
    }
    stores_[index] = std::move(store);
  }
}

}  // namespace assay
