#include "runtime/program.h"

namespace assay {
namespace {

struct Uses {
  std::vector<Register> reads, writes;
};

Uses uses_of(const EmbedOp& op) { return {{}, {op.out}}; }
Uses uses_of(const RmsNormOp& op) { return {{op.in}, {op.out}}; }
Uses uses_of(const QuantizeOp& op) { return {{op.in}, {op.out}}; }
Uses uses_of(const LinearOp& op) { return {{op.in}, {op.out}}; }
Uses uses_of(const RopeOp& op) { return {{op.x}, {op.x}}; }
Uses uses_of(const KvWriteOp& op) { return {{op.k, op.v}, {}}; }
Uses uses_of(const AttentionOp& op) { return {{op.q}, {op.out}}; }
Uses uses_of(const SwiGluOp& op) { return {{op.gate, op.up}, {op.out}}; }
Uses uses_of(const AddOp& op) { return {{op.x, op.y}, {op.x}}; }
Uses uses_of(const GatedNormOp& op) { return {{op.in, op.gate}, {op.out}}; }
Uses uses_of(const ScaleOp& op) { return {{op.x}, {op.x}}; }
Uses uses_of(const SoftcapOp& op) { return {{op.x}, {op.x}}; }
Uses uses_of(const SplitGateOp& op) { return {{op.in}, {op.q, op.gate}}; }
Uses uses_of(const SigmoidGateOp& op) { return {{op.x, op.gate}, {op.x}}; }
Uses uses_of(const CausalConvOp& op) { return {{op.in}, {op.out}}; }
Uses uses_of(const DeltaNetOp& op) { return {{op.qkv, op.a, op.b}, {op.out}}; }
Uses uses_of(const GeGluOp& op) { return {{op.gate, op.up}, {op.out}}; }
Uses uses_of(const RouteOp& op) { return {{op.logits}, {op.ids, op.weights}}; }
Uses uses_of(const ExpertLinearOp& op) { return {{op.in, op.ids}, {op.out}}; }
Uses uses_of(const WeightedSumOp& op) { return {{op.x, op.weights}, {op.out}}; }
Uses uses_of(const SliceOp& op) { return {{op.in}, {op.out}}; }
Uses uses_of(const SelectRowsOp& op) { return {{op.in}, {op.out}}; }

Uses uses(const Op& op) {
  return std::visit([](const auto& kind) { return uses_of(kind); }, op.kind);
}

}  // namespace

std::vector<Register> reads(const Op& op) { return uses(op).reads; }
std::vector<Register> writes(const Op& op) { return uses(op).writes; }

}  // namespace assay
