#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/executor.h"
#include "runtime/kv_cache.h"
#include "runtime/ops/block_int16.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/rope.h"

namespace assay {

/// Weights of a program on the host. Slots may be bound and dropped one by one: the quantizer holds
/// one layer at a time.
struct CpuWeights {
  std::vector<std::shared_ptr<const PackedMatrix>>
      matrices;                                         // by Program::matrices; embeddings excepted
  std::vector<std::vector<float>> vectors;              // by Program::vectors
  std::vector<std::shared_ptr<const RopeTable>> ropes;  // by Program::ropes
  /// By Program::matrices, of EmbedOp: rows are widened one by one.
  std::vector<std::shared_ptr<const CheckpointMatrix>> embeddings;
  std::shared_ptr<const Checkpoint> checkpoint;  // keeps what `embeddings` view
};

/// Binds everything that ops [begin, end) read, from the checkpoint. Already bound slots are kept
/// (a rope table with fewer than max_positions is made again). Throws ShapeError, or NumericError
/// naming module and row for weights that have no finite form.
void bind_weights(const Program& program, std::shared_ptr<const Checkpoint> checkpoint, int begin,
                  int end, int64_t max_positions, CpuWeights& weights);

/// Where each row of a batch stands.
struct RowPosition {
  int sequence = 0;
  int64_t position = 0;
};

/// Values of the registers for one batch of rows.
struct CpuRegisters {
  std::vector<std::vector<float>> f32;  // by register index; (rows, columns)
  std::vector<BlockInt16> block;        // by register index
};

/// All that an op needs to run on the host.
struct CpuContext {
  const Program* program = nullptr;
  const CpuWeights* weights = nullptr;
  CpuRegisters registers;
  KvCache* cache = nullptr;
  std::vector<RowPosition> rows;       // of the batch
  std::vector<int32_t> token_ids;      // of the rows; for EmbedOp
  std::vector<int64_t> selected_rows;  // for SelectRowsOp
  int64_t n_rows = 0;  // rows that ops work on now (after SelectRowsOp: the selected)
};

/// Prepares a context for n_rows rows: sizes every register that ops [begin, end) use (larger ones
/// are kept) and sets program and n_rows.
void prepare_registers(const Program& program, int begin, int end, int64_t n_rows,
                       CpuContext& context);

/// Runs one op on the first n_rows rows. Throws NumericError with op, layer, position and value.
void run_op(const Op& op, CpuContext& context);

/// Throws NumericError "<op>: layer …, sequence …, position …, column …: <what>: <value>". `row` is
/// a row of the op's registers.
[[noreturn]] void throw_not_finite(const Op& op, const CpuContext& context, int64_t row,
                                   int64_t column, float value, std::string_view what);

/// Bytes of a register of n_rows rows.
uint64_t register_bytes(const RegisterSpec& spec, int64_t n_rows);
/// n_rows, or n_selected for a register that ops after SelectRowsOp write.
int64_t register_rows(const Program& program, Register r, int64_t n_rows, int64_t n_selected);

/// The host device.
std::unique_ptr<Device> make_cpu_device();

}  // namespace assay
