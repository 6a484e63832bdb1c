#include "quantizer/report.h"

#include <fmt/core.h>

#include <utility>

namespace assay {

namespace {

std::string gain_key(const StepGain& step) { return std::string(step.name) + "_gain"; }

}  // namespace

Json to_json(const ModuleReport& module) {
  Json json = Json::object();
  json.set("module", module.module)
      .set("layer", module.layer)
      .set("out_features", module.out_features)
      .set("in_features", module.in_features)
      .set("bits_per_weight", module.bits_per_weight)
      .set("n_tokens", module.n_tokens)
      .set("loss", module.loss)
      .set("rtn_loss", module.rtn_loss)
      .set("weight_norm", module.weight_norm)
      .set("relative_loss", module.relative_loss())
      .set("relative_rtn_loss", module.relative_rtn_loss())
      .set("damp_percent", module.damp_percent)
      .set("n_dead_channels", module.n_dead)
      .set("clipped_share", module.clipped_share)
      .set("seconds", module.seconds);
  if (module.starved) json.set("starved", true);
  if (module.off_lattice) json.set("grid", "free");
  if (module.output_distance) json.set("output_distance", *module.output_distance);
  if (module.rtn_output_distance) json.set("rtn_output_distance", *module.rtn_output_distance);
  if (module.coupled_loss) json.set("coupled_loss", *module.coupled_loss);
  if (module.rtn_coupled_loss) json.set("rtn_coupled_loss", *module.rtn_coupled_loss);
  if (module.steps) {
    const StepLosses& losses = *module.steps;
    Json steps = Json::object();
    steps.set("column_loop_loss", losses.column_loop);
    for (const StepGain& step : kStepGains) steps.set(gain_key(step), losses.*step.gain);
    for (const StepGain& step : kStepGains) {
      steps.set(std::string(step.name) + "_share",
                losses.column_loop > 0.0 ? losses.*step.gain / losses.column_loop : 0.0);
    }
    json.set("steps", std::move(steps));
  }
  if (module.plain_loss) json.set("plain_loss", *module.plain_loss);
  if (!module.choice.is_null()) json.set("choice", module.choice);
  return json;
}

namespace {

ModuleReport module_from_json(const Json& json) {
  ModuleReport module;
  module.module = json.at("module").as_string();
  module.layer = static_cast<int>(json.at("layer").as_integer());
  module.out_features = json.at("out_features").as_integer();
  module.in_features = json.at("in_features").as_integer();
  module.bits_per_weight = json.at("bits_per_weight").as_number();
  module.n_tokens = json.at("n_tokens").as_integer();
  module.loss = json.at("loss").as_number();
  module.rtn_loss = json.at("rtn_loss").as_number();
  module.weight_norm = json.at("weight_norm").as_number();
  module.damp_percent = json.at("damp_percent").as_number();
  module.n_dead = json.at("n_dead_channels").as_integer();
  module.clipped_share = json.at("clipped_share").as_number();
  module.seconds = json.at("seconds").as_number();
  if (const Json* starved = json.find("starved")) module.starved = starved->as_bool();
  module.off_lattice = json.find("grid") != nullptr;
  if (const Json* distance = json.find("output_distance")) {
    module.output_distance = distance->as_number();
  }
  if (const Json* distance = json.find("rtn_output_distance")) {
    module.rtn_output_distance = distance->as_number();
  }
  if (const Json* loss = json.find("coupled_loss")) module.coupled_loss = loss->as_number();
  if (const Json* loss = json.find("rtn_coupled_loss")) {
    module.rtn_coupled_loss = loss->as_number();
  }
  if (const Json* steps = json.find("steps")) {
    module.steps.emplace();
    module.steps->column_loop = steps->at("column_loop_loss").as_number();
    for (const StepGain& step : kStepGains) {
      *module.steps.*step.gain = steps->at(gain_key(step)).as_number();
    }
  }
  if (const Json* plain = json.find("plain_loss")) module.plain_loss = plain->as_number();
  if (const Json* choice = json.find("choice")) module.choice = *choice;
  return module;
}

}  // namespace

Json to_json(const LayerReport& layer) {
  Json seconds = Json::object();
  seconds.set("sensitivity", layer.seconds.sensitivity)
      .set("forward", layer.seconds.forward)
      .set("gram", layer.seconds.gram)
      .set("factor", layer.seconds.factor)
      .set("solve", layer.seconds.solve);
  Json modules = Json::array();
  for (const ModuleReport& module : layer.modules) modules.push(to_json(module));
  Json json = Json::object();
  json.set("layer", layer.layer).set("seconds", seconds).set("modules", modules);
  if (!layer.held_out.is_null()) json.set("held_out", layer.held_out);
  return json;
}

LayerReport layer_report_from_json(const Json& json) {
  LayerReport layer;
  layer.layer = static_cast<int>(json.at("layer").as_integer());
  const Json& seconds = json.at("seconds");
  layer.seconds.sensitivity = seconds.at("sensitivity").as_number();
  layer.seconds.forward = seconds.at("forward").as_number();
  layer.seconds.gram = seconds.at("gram").as_number();
  layer.seconds.factor = seconds.at("factor").as_number();
  layer.seconds.solve = seconds.at("solve").as_number();
  for (const Json& module : json.at("modules").as_array()) {
    layer.modules.push_back(module_from_json(module));
  }
  if (const Json* held_out = json.find("held_out")) layer.held_out = *held_out;
  return layer;
}

std::string table_heading() {
  return fmt::format("{:<40} {:>6} {:>10} {:>10} {:>6} {:>7} {:>7} {:>7}", "module", "bits", "loss",
                     "RTN loss", "ratio", "damp", "clipped", "time");
}

std::string table_row(const ModuleReport& m) {
  const double ratio = m.rtn_loss > 0.0 ? m.loss / m.rtn_loss : 1.0;
  return fmt::format("{:<40} {:>6.3f} {:>10.3e} {:>10.3e} {:>6.3f} {:>7.4g} {:>6.2f}% {:>6.2f}s",
                     m.module, m.bits_per_weight, m.relative_loss(), m.relative_rtn_loss(), ratio,
                     m.damp_percent, 100.0 * m.clipped_share, m.seconds);
}

namespace {

bool has_loss_of_rtn(const ModuleReport& module) {
  return module.loss >= module.rtn_loss && module.rtn_loss > 0.0;
}

bool misses_its_aim(const ModuleReport& module) {
  if (module.coupled_loss && module.rtn_coupled_loss) {
    return *module.coupled_loss >= *module.rtn_coupled_loss && module.rtn_loss > 0.0;
  }
  if (module.output_distance && module.rtn_output_distance) {
    return *module.output_distance >= *module.rtn_output_distance && module.rtn_loss > 0.0;
  }
  return has_loss_of_rtn(module);
}

std::vector<std::string> names_of(const std::vector<LayerReport>& layers,
                                  bool (*wanted)(const ModuleReport& module)) {
  std::vector<std::string> names;
  for (const LayerReport& layer : layers) {
    for (const ModuleReport& module : layer.modules) {
      if (!module.starved && wanted(module)) names.push_back(module.module);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> modules_not_better_than_rtn(const std::vector<LayerReport>& layers) {
  return names_of(layers, misses_its_aim);
}

std::vector<std::string> modules_away_from_their_weights(const std::vector<LayerReport>& layers) {
  return names_of(layers, [](const ModuleReport& module) {
    return has_loss_of_rtn(module) && !misses_its_aim(module);
  });
}

}  // namespace assay
