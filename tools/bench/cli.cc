#include "bench/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <random>
#include <string_view>

#include "base/check.h"

namespace bdcp::bench {
namespace {

struct Words {
  std::string mode = "both", dtype = "bf16", oracle = "auto", backend, exchange;
  std::int64_t poison = -1;
};

std::string known_dtype(const std::string& text) {
  return parse_dtype(text) ? std::string() : fmt::format("{} is no dtype; allowed: f32, f16, bf16", text);
}
std::string known_backend(const std::string& text) {
  return parse_backend(text)
             ? std::string()
             : fmt::format("{} is no backend; allowed: auto, hopper, portable, reference, host", text);
}
std::string known_exchange(const std::string& text) {
  return parse_exchange_path(text)
             ? std::string()
             : fmt::format("{} is no exchange path; allowed: auto, allgather, halo, a2a", text);
}

void add_documents(CLI::App& app, Request& request) {
  auto* documents = app.add_option_group("documents", "What is measured: one of these");
  documents->add_option("--pack", request.packs, "Pack names, see --list-packs")->delimiter(',');
  auto* lengths =
      documents->add_option("--lengths", request.lengths, "Token counts L1,L2,..; LxN repeats L N times");
  auto* cu = documents->add_option("--cu-seqlens", request.cu_seqlens, "Offsets 0,c1,c2,..");
  documents->add_option("--cu-seqlens-k", request.cu_seqlens_k, "Key offsets of a rectangular layout")
      ->needs(cu);
  documents->add_option("--random", request.random, "N random mixed layouts, each checked")
      ->check(CLI::Range(1, 1000000));
  documents->add_option("--max-tokens", request.max_tokens, "Largest layout of --random")
      ->check(CLI::Range(std::int64_t{16}, std::int64_t{1} << 30))
      ->capture_default_str();
  lengths->excludes(cu);
  app.add_option("--pad", request.padding, "Trailing padding tokens")->check(CLI::NonNegativeNumber);
  app.add_flag("--list-packs", request.list_packs, "Print the pack names and end");
}

void add_call(CLI::App& app, MeasureOptions& options, Words& words) {
  constexpr int kMost = 65536;
  const auto positive = CLI::Range(1, kMost);
  options.shape.heads_q = 32;
  options.shape.heads_kv = 8;
  options.shape.head_dim = 128;
  app.add_option("--hq,--heads-q", options.shape.heads_q, "Query heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--hkv,--heads-kv", options.shape.heads_kv, "K/V heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--d,--head-dim", options.shape.head_dim, "Head dim of Q and K")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--dv,--head-dim-v", options.shape.head_dim_v, "Head dim of V and O; default: that of Q")
      ->check(positive);
  app.add_option("--dtype", words.dtype, "f32, f16 or bf16")
      ->check(CLI::Validator(known_dtype, "DTYPE"))
      ->capture_default_str();
  app.add_option("--mode", words.mode, "fwd, bwd or both")
      ->check(CLI::IsMember({"fwd", "bwd", "both"}))
      ->capture_default_str();
  app.add_option("--backend", words.backend, "auto, hopper, portable, reference or host; default: the policy's")
      ->check(CLI::Validator(known_backend, "BACKEND"));
  app.add_option("--exchange", words.exchange, "auto, allgather, halo or a2a; default: the policy's")
      ->check(CLI::Validator(known_exchange, "PATH"));
  app.add_flag("--deterministic", options.deterministic, "Bit-identical dQ too");
  app.add_option("--policy", options.policy_file, "Policy file (JSON)");
  app.add_option("--device", options.device, "auto, host or a CUDA ordinal")->capture_default_str();
}

CLI::Option* add_ranks(CLI::App& app, Request& request) {
  app.add_flag("--spawn", request.spawn, "One process per rank, each on a GPU of its own");
  return app
      .add_option(
          "--world", request.options.world,
          "Ranks: all in this process and on one device, processes with --spawn, or those that torchrun, "
          "mpirun or srun started")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

CLI::Option* add_exchange(CLI::App& app, Request& request) {
  autotune::ExchangeOptions& options = request.exchange;
  app.add_option("--paths", options.paths, "allgather, halo, a2a")
      ->delimiter(',')
      ->check(CLI::IsMember({"allgather", "halo", "a2a"}))
      ->capture_default_str();
  app.add_option("--sizes", options.sizes, "Bytes that a rank gives; default: 64 KiB to 256 MiB in steps of 4")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 36));
  app.add_option("--iters", options.iters, "Transfers in a row")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--device", options.device, "auto, host or a CUDA ordinal")->capture_default_str();
  app.add_flag("--json", request.json, "One JSON line per measurement");
  return add_ranks(app, request);
}

}  // namespace

ParsedArgs parse_args(int argc, const char* const* argv) {
  ParsedArgs parsed;
  Request& request = parsed.request;
  MeasureOptions& options = request.options;
  Words words;
  CLI::App app("Times attention over packed documents and what it takes between ranks, and checks its numbers.",
               "bdcp-bench");
  app.footer(
      "Exit codes: 0 ok, 2 usage, 3 invalid input, 4 the environment lacks something, 5 a check failed.");
  app.require_subcommand(1);
  CLI::App& attention = *app.add_subcommand("attention", "Forward and backward of one attention layer");
  add_documents(attention, request);
  add_call(attention, options, words);
  auto* world = add_ranks(attention, request);
  CLI::App& exchange = *app.add_subcommand("exchange", "Moving rows between ranks, without attention");
  auto* exchange_world = add_exchange(exchange, request);
  auto* iters =
      attention.add_option("--iters", options.iters, "Timed calls, after a warm-up; the median counts")
          ->check(CLI::Range(1, 1000000))
          ->capture_default_str();
  attention
      .add_option("--warmup", options.warmup,
                  "Calls before the timed ones; fewer, but two, where they take more than 1.5 s")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  attention.add_flag("--check", options.check,
                     "Compare out, lse and gradients with float64 (times only with --iters)");
  attention
      .add_option("--oracle", words.oracle,
                  "full: float64 on every row; sampled: f32 everywhere, float64 on some")
      ->check(CLI::IsMember({"auto", "full", "sampled"}))
      ->capture_default_str();
  auto* poison = attention.add_option(
      "--poison", words.poison,
      "Fill this document (from 0) and all padding with NaN and Inf; no other row may change");
  poison->check(CLI::NonNegativeNumber);
  auto* seed = attention.add_option("--seed", options.seed, "Seed of the inputs; default: a fresh one");
  attention.add_flag("--json", request.json, "One JSON line per measurement");
  try {
    app.parse(argc, argv);
    request.what = exchange.parsed() ? Request::What::exchange : Request::What::attention;
    const bool documents = request.what == Request::What::exchange || !request.packs.empty() ||
                           !request.lengths.empty() || !request.cu_seqlens.empty();
    if (!documents && request.random == 0 && !request.list_packs) {
      throw CLI::RequiredError("one of --pack, --lengths, --cu-seqlens, --random");
    }
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
    return parsed;
  }
  request.world_given = world->count() + exchange_world->count() > 0;
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) != "--spawn") request.children.emplace_back(argv[i]);
  if (request.exchange.sizes.empty()) request.exchange.sizes = autotune::default_sizes();
  options.shape.dtype = *parse_dtype(words.dtype);
  options.backend = words.backend;
  options.exchange = words.exchange;
  options.modes = {.forward = words.mode != "bwd", .gradients = words.mode != "fwd"};
  options.oracle =
      std::map<std::string, OracleMode>{
          {"auto", OracleMode::automatic}, {"full", OracleMode::full}, {"sampled", OracleMode::sampled}}
          .at(words.oracle);
  if (poison->count() > 0) options.poison = words.poison;
  if (request.random > 0) options.check = true;
  options.time = iters->count() > 0 || (!options.check && !options.poison);
  if (seed->count() == 0) options.seed = std::random_device()();
  return parsed;
}

}  // namespace bdcp::bench
