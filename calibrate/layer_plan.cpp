#include "calibrate/layer_plan.h"

#include <algorithm>
#include <set>
#include <string>

#include "convert/core/error.h"

namespace assay {
namespace {

const Op& op_at(const Program& program, int i) { return program.ops[static_cast<size_t>(i)]; }

bool contains(const std::vector<Register>& list, Register r) {
  return std::find(list.begin(), list.end(), r) != list.end();
}

// Index past the last op that could still read what is in `r` at `from`: its next overwriting, or
// the end of the program.
std::vector<int> matrices_reading(const Program& program, Register r, int from,
                                  const WantedMatrix& wanted) {
  std::vector<int> matrices;
  for (int i = from; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = op_at(program, i);
    if (const auto* linear = std::get_if<LinearOp>(&op.kind)) {
      const MatrixSlot& slot = program.matrices[static_cast<size_t>(linear->matrix)];
      if (linear->in == r && slot.quantizable && wanted(slot)) matrices.push_back(linear->matrix);
    }
    if (contains(writes(op), r)) break;
  }
  return matrices;
}

// The register that the output of the linear with `matrix` is added to, unchanged, before another
// op reads that output or writes that register.
Register added_to(const Program& program, const OpRange& range, int from, int matrix) {
  Register out;
  for (int i = from; i < range.end; ++i) {
    const Op& op = op_at(program, i);
    const auto* linear = std::get_if<LinearOp>(&op.kind);
    if (linear != nullptr && linear->matrix == matrix) {
      out = linear->out;
      continue;
    }
    const auto* add = std::get_if<AddOp>(&op.kind);
    if (out.index >= 0 && add != nullptr && add->y == out) {
      for (int j = from; j < i; ++j) {
        if (contains(writes(op_at(program, j)), add->x)) return {};
      }
      return add->x;
    }
    if (out.index >= 0 && (contains(reads(op), out) || contains(writes(op), out))) return {};
  }
  return {};
}

std::vector<CaptureStop> find_stops(const Program& program, const OpRange& range,
                                    const WantedMatrix& wanted) {
  std::vector<CaptureStop> stops;
  for (int i = range.begin; i < range.end; ++i) {
    const auto* quantize = std::get_if<QuantizeOp>(&op_at(program, i).kind);
    if (quantize == nullptr) continue;
    std::vector<int> matrices = matrices_reading(program, quantize->out, i + 1, wanted);
    if (matrices.empty()) continue;
    const int64_t columns = program.registers[static_cast<size_t>(quantize->in.index)].columns;
    const Register sum =
        matrices.size() == 1 ? added_to(program, range, i, matrices.front()) : Register{};
    stops.push_back({i, quantize->in, columns, std::move(matrices), sum});
  }
  return stops;
}

void check_crossing(const Program& program, const Segment& segment) {
  for (const auto& list : {segment.loads, segment.stores}) {
    for (const Register r : list) {
      const RegisterSpec& spec = program.registers[static_cast<size_t>(r.index)];
      if (!spec.block_int16) continue;
      throw UnsupportedError("calibration: register " + spec.name +
                             " (block int16) would have to be kept while linears before \"" +
                             op_at(program, segment.begin).name + "\" are solved");
    }
  }
  std::set<int> written;
  for (int i = segment.begin; i < segment.end; ++i) {
    const Op& op = op_at(program, i);
    if (const auto* write = std::get_if<KvWriteOp>(&op.kind)) written.insert(write->cache_layer);
    const auto* attention = std::get_if<AttentionOp>(&op.kind);
    if (attention == nullptr || written.contains(attention->cache_layer)) continue;
    throw UnsupportedError("calibration: \"" + op.name +
                           "\" reads keys and values that were written before a capture");
  }
}

Segment make_segment(const Program& program, int begin, int end) {
  Segment segment{begin, end, {}, {}, {}};
  const std::vector<Register> before = live_before(program, begin);
  const std::vector<Register> after = live_before(program, end);
  std::vector<Register> read;
  std::vector<Register> written;
  for (int i = begin; i < end; ++i) {
    for (const Register r : reads(op_at(program, i))) read.push_back(r);
    for (const Register r : writes(op_at(program, i))) written.push_back(r);
  }
  for (const Register r : before) {
    const bool used = contains(read, r);
    const bool kept = contains(after, r) && !contains(written, r);
    if (used) segment.loads.push_back(r);
    if (used && !kept) segment.drops.push_back(r);
  }
  for (const Register r : after) {
    if (contains(written, r)) segment.stores.push_back(r);
  }
  check_crossing(program, segment);
  return segment;
}

}  // namespace

std::vector<Register> live_before(const Program& program, int op) {
  std::set<int> live;
  for (int i = static_cast<int>(program.ops.size()) - 1; i >= op; --i) {
    for (const Register r : writes(op_at(program, i))) live.erase(r.index);
    for (const Register r : reads(op_at(program, i))) live.insert(r.index);
  }
  std::vector<Register> out;
  out.reserve(live.size());
  for (const int index : live) out.push_back({index});
  return out;
}

LayerPlan plan_ops(const Program& program, int layer, const OpRange& range,
                   const WantedMatrix& wanted) {
  LayerPlan plan;
  plan.layer = layer;
  plan.stops = find_stops(program, range, wanted);
  int begin = range.begin;
  for (const CaptureStop& stop : plan.stops) {
    plan.segments.push_back(make_segment(program, begin, stop.op));
    begin = stop.op;
  }
  plan.segments.push_back(make_segment(program, begin, range.end));
  return plan;
}

LayerPlan plan_layer(const Program& program, int layer, const WantedMatrix& wanted) {
  return plan_ops(program, layer, program.layers[static_cast<size_t>(layer)], wanted);
}

}  // namespace assay
