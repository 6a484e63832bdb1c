#include "calibrate/layer_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "convert/core/error.h"
#include "tests/calibrate/small_program.h"

namespace assay {
namespace {

bool every_linear(const MatrixSlot&) { return true; }

std::set<std::string> names(const Program& program, const std::vector<Register>& registers) {
  std::set<std::string> out;
  for (const Register r : registers) {
    out.insert(program.registers[static_cast<size_t>(r.index)].name);
  }
  return out;
}

TEST(LayerPlan, StopsOncePerVectorThatLinearsShare) {
  const test::SmallModel model = test::make_small_model(2, 1);

  const LayerPlan plan = plan_layer(model.program, 1, every_linear);

  std::vector<std::vector<std::string>> linears;
  for (const CaptureStop& stop : plan.stops) {
    linears.emplace_back();
    for (const int matrix : stop.matrices) {
      linears.back().push_back(
          model.program.matrices[static_cast<size_t>(matrix)].module.substr(15));
    }
  }
  EXPECT_EQ(linears, (std::vector<std::vector<std::string>>{
                         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                         {"self_attn.o_proj"},
                         {"mlp.gate_proj", "mlp.up_proj"},
                         {"mlp.down_proj"}}));
  EXPECT_EQ(plan.stops[3].columns, 96);
}

// What the output of o_proj and down_proj is added to; the others' outputs go elsewhere.
TEST(LayerPlan, KnowsTheSumThatAnOutputGoesInto) {
  const test::SmallModel model = test::make_small_model(2, 1);

  const LayerPlan plan = plan_layer(model.program, 1, every_linear);

  EXPECT_LT(plan.stops[0].adds_to.index, 0);
  EXPECT_EQ(plan.stops[1].adds_to, model.program.residual);
  EXPECT_LT(plan.stops[2].adds_to.index, 0);
  EXPECT_EQ(plan.stops[3].adds_to, model.program.residual);
}

TEST(LayerPlan, SegmentsCoverTheLayerWithoutGaps) {
  const test::SmallModel model = test::make_small_model(2, 1);

  const LayerPlan plan = plan_layer(model.program, 0, every_linear);

  ASSERT_EQ(plan.segments.size(), 5u);
  EXPECT_EQ(plan.segments.front().begin, model.program.layers[0].begin);
  EXPECT_EQ(plan.segments.back().end, model.program.layers[0].end);
  for (size_t i = 0; i < plan.stops.size(); ++i) {
    EXPECT_EQ(plan.segments[i].end, plan.stops[i].op);
    EXPECT_EQ(plan.segments[i + 1].begin, plan.stops[i].op);
  }
}

TEST(LayerPlan, KeepsWhatIsReadLaterAndNothingElse) {
  const test::SmallModel model = test::make_small_model(1, 1);
  const Program& program = model.program;

  const LayerPlan plan = plan_layer(program, 0, every_linear);

  // Up to the norm's output: the stream is read, not changed, and still needed.
  const auto captured = names(program, {plan.stops[0].input});
  EXPECT_EQ(names(program, plan.segments[0].loads), (std::set<std::string>{"h"}));
  EXPECT_TRUE(plan.segments[0].drops.empty());
  EXPECT_EQ(names(program, plan.segments[0].stores), captured);
  // Through attention: the stream is not touched, so it is not moved.
  EXPECT_EQ(names(program, plan.segments[1].loads), captured);
  EXPECT_EQ(names(program, plan.segments[1].drops), captured);
  EXPECT_EQ(names(program, plan.segments[1].stores), (std::set<std::string>{"attention"}));
  // The last one gives the stream to the next layer.
  EXPECT_EQ(names(program, plan.segments[4].loads), (std::set<std::string>{"activated", "h"}));
  EXPECT_EQ(names(program, plan.segments[4].stores), (std::set<std::string>{"h"}));
}

TEST(LayerPlan, LinearsThatAreNotWantedAreNoStop) {
  const test::SmallModel model = test::make_small_model(1, 1);

  const LayerPlan plan = plan_layer(
      model.program, 0, [](const MatrixSlot& slot) { return slot.role == Role::kUpProj; });

  ASSERT_EQ(plan.stops.size(), 1u);
  EXPECT_EQ(plan.stops[0].matrices.size(), 1u);
  EXPECT_EQ(plan.segments.size(), 2u);
}

TEST(LayerPlan, RefusesKeysThatWouldHaveToLiveAcrossAStop) {
  test::SmallModel model = test::make_small_model(1, 1);
  Program& program = model.program;
  // Quantize the query after the keys were written, and give it to a linear.
  const int attention = [&] {
    int i = 0;
    while (!std::holds_alternative<AttentionOp>(program.ops[static_cast<size_t>(i)].kind)) ++i;
    return i;
  }();
  const auto q = std::get<AttentionOp>(program.ops[static_cast<size_t>(attention)].kind).q;
  program.registers.push_back({"extra", 64, true});
  program.registers.push_back({"extra_out", 64, false});
  const Register block{static_cast<int>(program.registers.size()) - 2};
  const Register out{static_cast<int>(program.registers.size()) - 1};
  const int matrix =
      std::get<LinearOp>(program.ops[static_cast<size_t>(attention) - 6].kind).matrix;
  const auto at = program.ops.begin() + attention;
  program.ops.insert(at, {Op{QuantizeOp{q, block}, "extra.input", 0},
                          Op{LinearOp{block, out, matrix, std::nullopt}, "extra", 0}});
  program.layers[0].end += 2;

  EXPECT_THROW(plan_layer(program, 0, every_linear), UnsupportedError);
}

}  // namespace
}  // namespace assay
