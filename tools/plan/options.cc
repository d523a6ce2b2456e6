#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bdcp/doc_layout.h"
#include "bdcp/policy.h"
#include "common/cli.h"

namespace bdcp::tools {
namespace {

std::string known_path(const std::string& text) {
  return parse_exchange_path(text)
             ? std::string()
             : fmt::format("{} is no exchange path; allowed: auto, allgather, halo, a2a", text);
}

std::string known_backend(const std::string& text) {
  return parse_backend(text)
             ? std::string()
             : fmt::format("{} is no backend; allowed: auto, hopper, portable, reference, host", text);
}

std::string known_dtype(const std::string& text) {
  return parse_dtype(text) ? std::string() : fmt::format("{} is no dtype; allowed: f32, f16, bf16", text);
}

std::string known_arch(const std::string& text) {
  const bool sm = text.starts_with("sm_") && text.size() >= 5 && text.find_first_not_of("0123456789", 3) >= 5;
  return sm || text == "host" ? std::string()
                              : fmt::format("{} is no target; allowed: sm_80, sm_90a, .., or host", text);
}

void add_documents(CLI::App& app, PlanOptions& options) {
  auto* group = app.add_option_group("documents", "The documents: one of these");
  group->require_option(1);
  group->add_option("--lengths", options.lengths, "Token counts L1,L2,..; LxN repeats L N times");
  group->add_option("--doc-ids", options.doc_ids, "One id per token, 0 for the padding tail");
  auto* cu = group->add_option("--cu-seqlens", options.cu_seqlens, "Offsets 0,c1,c2,..");
  group->add_option("--layout", options.layout_file,
                    "JSON file with lengths, doc_ids or cu_seqlens [and cu_seqlens_k]");
  group->add_option("--pack", options.pack, "A pack of configs/workloads, uLEN, oneTOKENS or oneNk");
  app.add_option("--cu-seqlens-k", options.cu_seqlens_k, "Key offsets of a rectangular layout (world 1)")
      ->needs(cu);
  app.add_option("--pad", options.padding, "Trailing padding tokens")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace

ParsedPlanOptions parse_plan_options(int argc, const char* const* argv) {
  ParsedPlanOptions parsed;
  PlanOptions& options = parsed.options;
  options.shape.heads_q = 32;
  options.shape.heads_kv = 8;
  options.shape.head_dim = 128;
  std::string dtype = "bf16";
  CLI::App app(
      "Explains how packed documents are sharded, what travels between ranks, and which path is taken.",
      "bdcp-plan");
  app.footer(
      "Exit codes: 0 ok, 2 usage, 3 invalid input, 4 the environment lacks something, 5 a check failed.");
  add_documents(app, options);
  const auto positive = CLI::Range(1, 65536);
  app.add_option("--world", options.world, "Ranks that share the sequence")
      ->check(CLI::Range(1, kMaxWorldSize))
      ->required();
  app.add_option("--exchange", options.exchange, "auto, allgather, halo or a2a; default: the policy's")
      ->check(CLI::Validator(known_path, "PATH"));
  app.add_option("--backend", options.backend,
                 "auto, hopper, portable, reference or host; default: the policy's")
      ->check(CLI::Validator(known_backend, "BACKEND"));
  app.add_option("--policy", options.policy_file,
                 "Policy file (JSON); default: BDCP_POLICY, else the built-in values");
  auto* per_node = app.add_option("--ranks-per-node", options.ranks_per_node, "Ranks on each node")
                       ->check(CLI::Range(1, kMaxWorldSize));
  app.add_option("--hosts", options.hosts, "Host of every rank h0,h1,..; default: one host")
      ->delimiter(',')
      ->excludes(per_node);
  app.add_option("--heads-q", options.shape.heads_q, "Query heads")->check(positive)->capture_default_str();
  app.add_option("--heads-kv", options.shape.heads_kv, "K/V heads")->check(positive)->capture_default_str();
  app.add_option("--head-dim", options.shape.head_dim, "Head dim")->check(positive)->capture_default_str();
  app.add_option("--dtype", dtype, "f32, f16 or bf16")
      ->check(CLI::Validator(known_dtype, "DTYPE"))
      ->capture_default_str();
  app.add_option("--dropout", options.shape.dropout_p, "Dropout probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--arch", options.arch, "Device the backends are judged for: sm_80, sm_90a, .., or host")
      ->check(CLI::Validator(known_arch, "ARCH"))
      ->capture_default_str();
  app.add_flag("--json", options.json, "One JSON document on stdout");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = app.exit(error) == 0 ? exit_ok : exit_usage;
    return parsed;
  }
  options.shape.dtype = *parse_dtype(dtype);
  return parsed;
}

}  // namespace bdcp::tools
