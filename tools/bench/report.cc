#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace bdcp::bench {
namespace {

using Json = nlohmann::ordered_json;

double rounded(double value, double steps) { return std::round(value * steps) / steps; }

double tflops(const Measurement& m) { return flops(*m.workload, m.shape, m.mode) / m.timing->ms / 1e9; }

Json to_json(const CheckResult& check) {
  Json errors = Json::object();
  for (const TensorError& error : check.errors) {
    // JSON has no inf or NaN: null says "not a finite number" and, as a limit, "no limit".
    errors[error.name] = {{"max", error.max},
                          {"rel_l2", error.rel_l2},
                          {"max_limit", error.max_limit},
                          {"rel_l2_limit", error.rel_l2_limit},
                          {"worst_row", error.worst_row},
                          {"pass", error.pass}};
  }
  return errors;
}

}  // namespace

bool CheckResult::pass() const {
  return padding_zero && repeat_identical &&
         std::all_of(errors.begin(), errors.end(), [](const TensorError& error) { return error.pass; });
}

bool Measurement::pass() const { return (!check || check->pass()) && (!poison || poison->pass()); }

std::string to_json_line(const Measurement& m) {
  Json line;
  line["impl"] = "bdcp";
  line["mode"] = to_string(m.mode);
  line["pack"] = m.workload->name;
  line["docs"] = m.workload->documents();
  line["tokens"] = m.workload->tokens();
  line["hq"] = m.shape.heads_q;
  line["hkv"] = m.shape.heads_kv;
  line["d"] = m.shape.head_dim;
  line["ms"] = m.timing ? Json(rounded(m.timing->ms, 1e4)) : Json();
  line["tflops"] = m.timing && m.timing->ms > 0 ? Json(rounded(tflops(m), 1e1)) : Json();
  line["backend"] = to_string(m.decision.backend);
  line["dtype"] = to_string(m.shape.dtype);
  line["dv"] = m.shape.dim_v();
  line["world"] = m.world;
  line["exchange"] = to_string(m.decision.path);
  line["device"] = m.device;
  line["padding"] = m.workload->padding;
  line["seed"] = m.seed;
  line["deterministic"] = m.deterministic;
  line["iters"] = m.iters;
  if (m.timing && m.timing->host_us) line["host_us"] = rounded(*m.timing->host_us, 1e2);
  if (m.timing && m.world > 1)
    line["exposed_us"] = m.timing->exposed_us ? Json(rounded(*m.timing->exposed_us, 1e2)) : Json();
  if (m.begin_step_us) line["begin_step_us"] = rounded(*m.begin_step_us, 1e1);
  Json downgrades = Json::array();
  for (const Downgrade& downgrade : m.decision.downgrades) {
    downgrades.push_back({{"from", downgrade.from},
                          {"to", downgrade.to},
                          {"code", downgrade.code},
                          {"rank", downgrade.rank},
                          {"text", downgrade.text}});
  }
  line["downgrades"] = downgrades;
  if (m.check) {
    line["errors"] = to_json(*m.check);
    line["against"] = m.check->against;
    line["padding_zero"] = m.check->padding_zero;
    line["repeat_identical"] = m.check->repeat_identical;
  }
  if (m.poison) {
    line["poison"] = {{"document", m.poison->document},
                      {"rows_changed", m.poison->rows_changed},
                      {"padding_zero", m.poison->padding_zero},
                      {"document_keeps_nan", m.poison->document_keeps_nan},
                      {"dq_compared_bitwise", m.poison->dq_compared_bitwise},
                      {"pass", m.poison->pass()}};
  }
  if (m.check || m.poison) line["pass"] = m.pass();
  return line.dump();
}

std::string to_text(const Measurement& m) {
  std::string text =
      fmt::format("{:<14} {} {}:{} d{}{} {} world {} {:<9} {:<10}", m.workload->name, to_string(m.mode),
                  m.shape.heads_q, m.shape.heads_kv, m.shape.head_dim,
                  m.shape.dim_v() == m.shape.head_dim ? "" : fmt::format("/{}", m.shape.dim_v()),
                  to_string(m.shape.dtype), m.world, to_string(m.decision.path), to_string(m.decision.backend));
  if (m.timing) text += fmt::format("  {:.4f} ms  {:.1f} TFLOP/s", m.timing->ms, tflops(m));
  if (m.timing && m.timing->host_us) text += fmt::format("  host {:.2f} us", *m.timing->host_us);
  if (m.timing && m.timing->exposed_us) text += fmt::format("  exposed {:.2f} us", *m.timing->exposed_us);
  if (m.begin_step_us) text += fmt::format("  begin_step {:.1f} us", *m.begin_step_us);
  if (m.check) {
    for (const TensorError& error : m.check->errors) {
      text += fmt::format(
          "\n    {:<4} rel l2 {:.2e} (limit {:.1e})  max {:.2e} (limit {:.2e})  worst row at {:.0f} % of its "
          "limit  {}",
          error.name, error.rel_l2, error.rel_l2_limit, error.max, error.max_limit, 100 * error.worst_row,
          error.pass ? "ok" : "FAILED");
    }
    text += fmt::format("\n    against {}; padding {}; a second run {}", m.check->against,
                        m.check->padding_zero ? "is zero" : "IS NOT ZERO",
                        m.check->repeat_identical ? "gave the same bits" : "GAVE OTHER BITS");
  }
  if (m.poison) {
    text += fmt::format("\n    poisoned document {}: {} other rows changed{}{}", m.poison->document,
                        m.poison->rows_changed, m.poison->padding_zero ? "" : ", PADDING IS NOT ZERO",
                        m.poison->document_keeps_nan ? "" : ", ITS OWN ROWS ARE NOT NaN");
  }
  if (m.check || m.poison) text += m.pass() ? "\n    passed" : "\n    FAILED";
  std::string steps;  // their texts are in the log
  for (const Downgrade& downgrade : m.decision.downgrades) {
    steps +=
        fmt::format("{}{} -> {} ({})", steps.empty() ? "" : ", ", downgrade.from, downgrade.to, downgrade.code);
  }
  if (!steps.empty()) text += "\n    downgrades: " + steps;
  return text;
}

}  // namespace bdcp::bench
