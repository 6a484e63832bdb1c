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

// The linears that read what is in a register.
struct Readers {
  std::vector<int> matrices;
  Register routes;  // of experts; index −1: none
};

// Those that read what is in `r` at `from`, up to its next overwriting.
Readers readers_of(const Program& program, Register r, int from, const WantedMatrix& wanted) {
  Readers readers;
  const auto add = [&](int matrix) {
    const MatrixSlot& slot = program.matrices[static_cast<size_t>(matrix)];
    if (wanted(slot)) readers.matrices.push_back(matrix);
  };
  for (int i = from; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = op_at(program, i);
    const auto* linear = std::get_if<LinearOp>(&op.kind);
    if (linear != nullptr && linear->in == r) add(linear->matrix);
    const auto* experts = std::get_if<ExpertLinearOp>(&op.kind);
    if (experts != nullptr && experts->in == r) {
      readers.routes = experts->ids;
      for (int e = 0; e < experts->n_experts; ++e) add(experts->first_matrix + e);
    }
    if (contains(writes(op), r)) break;
  }
  // gate and up of one expert side by side.
  if (readers.routes.index >= 0) {
    std::stable_sort(readers.matrices.begin(), readers.matrices.end(), [&](int a, int b) {
      return program.matrices[static_cast<size_t>(a)].expert <
             program.matrices[static_cast<size_t>(b)].expert;
    });
  }
  return readers;
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
    Readers readers = readers_of(program, quantize->out, i + 1, wanted);
    if (readers.matrices.empty()) continue;
    const RegisterSpec& input = program.registers[static_cast<size_t>(quantize->out.index)];
    const Register sum = readers.matrices.size() == 1 && readers.routes.index < 0
                             ? added_to(program, range, i, readers.matrices.front())
                             : Register{};
    stops.push_back({i, quantize->in, input.slot_columns(), readers.routes, input.slots,
                     std::move(readers.matrices), sum});
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
    const Uses used = uses(op);
    if (used.cache_written >= 0) written.insert(used.cache_written);
    if (used.cache_read < 0 || written.contains(used.cache_read)) continue;
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
