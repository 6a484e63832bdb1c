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
Uses uses_of(const SelectRowsOp& op) { return {{op.in}, {op.out}}; }

Uses uses(const Op& op) {
  return std::visit([](const auto& kind) { return uses_of(kind); }, op.kind);
}

}  // namespace

std::vector<Register> reads(const Op& op) { return uses(op).reads; }
std::vector<Register> writes(const Op& op) { return uses(op).writes; }

}  // namespace assay
