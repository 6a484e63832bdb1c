#pragma once

#include <functional>
#include <vector>

#include "runtime/program.h"

namespace assay {

/// A place where the walk of a layer stops: before a QuantizeOp whose output goes into linears that
/// are to be quantized. All of them share the captured input.
struct CaptureStop {
  int op = -1;          // index of the QuantizeOp
  Register input;       // fp32, what is captured
  int64_t columns = 0;  // in_features
  /// Ids of the experts of each row, fp32 (top_k), where the linears are experts' and so read the
  /// rows that were routed to them; index −1: all read all rows.
  Register routes = {};
  int slots = 1;  // inputs of `columns` values in a row: one for all its experts, or one for each
  std::vector<int> matrices;  // into Program::matrices, in the order of the ops that use them
  /// The register that the only linear's output is added to as it is (the residual stream, for
  /// o_proj and down_proj of most models); index −1: none.
  Register adds_to;
};

/// Ops [begin, end) between two stops (or the ends of the layer), and the registers that must be
/// kept for all tokens around them.
struct Segment {
  int begin = 0;
  int end = 0;
  std::vector<Register> loads;   // read from their stores before the ops run
  std::vector<Register> drops;   // of `loads`: not needed after these ops
  std::vector<Register> stores;  // written by these ops and read after them
};

/// One layer cut at its stops: segments.size() == stops.size() + 1, segment i ends at stop i.
struct LayerPlan {
  int layer = -1;
  std::vector<CaptureStop> stops;
  std::vector<Segment> segments;
};

/// Says which matrices are wanted: those to be quantized, or to be measured.
using WantedMatrix = std::function<bool(const MatrixSlot& matrix)>;

/// Cuts ops [range.begin, range.end) of a program. What lives across a stop follows from reads()
/// and writes() of the ops alone. Throws UnsupportedError where something other than fp32 registers
/// would have to live across one (block int16, keys and values of a cache).
LayerPlan plan_ops(const Program& program, int layer, const OpRange& range,
                   const WantedMatrix& wanted);
/// The same for one decoder layer.
LayerPlan plan_layer(const Program& program, int layer, const WantedMatrix& wanted);

/// Registers that ops from `op` on read before they write them, ascending.
std::vector<Register> live_before(const Program& program, int op);

}  // namespace assay
