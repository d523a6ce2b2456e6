// bdcp-bench: times attention over packed documents and checks its numbers.
#include <fmt/format.h>

#include "base/env.h"
#include "bench/cli.h"
#include "bench/report.h"
#include "bench/spawn.h"
#include "comm/launcher_env.h"
#include "common/cli.h"
#include "common/workloads.h"

namespace bdcp::bench {
namespace {

int list_packs() {
  for (const std::string& name : tools::pack_names()) tools::print_text(name + "\n");
  tools::print_text("uLEN      documents of LEN tokens, 32768 in all\noneTOKENS, oneNk  one document\n");
  return tools::exit_ok;
}

/// Ranks as the request and the launcher want them.
Team assemble(Request& request) {
  const Env env = Env::from_process();
  int launched = 1;
  try {
    launched = comm::read_launch(env.launcher).world;
  } catch (const Error&) {
    // No launcher: all ranks are here.
  }
  if (launched == 1) return Team(request.options.world);
  if (request.world_given && request.options.world != launched)
    throw Error(ErrorCode::invalid_argument, fmt::format("--world is {}, and the launcher started {} processes",
                                                         request.options.world, launched));
  request.options.world = launched;
  return Team(Communicator::from_launcher({.name = "bench"}));
}

int run_exchange(const Request& request, const Team& team) {
  measure_exchange(request.exchange, team, [&](const ExchangeLine& line) {
    if (team.leads()) tools::print_text((request.json ? to_json_line(line) : to_text(line)) + "\n");
  });
  return tools::exit_ok;
}

int run_attention(const Request& request, const Team& team) {
  const std::vector<Workload> cases = workloads(request);
  Bench bench(request.options, team);
  std::size_t passed = 0;
  for (const Workload& workload : cases) {
    bool ok = true;
    for (const Measurement& measurement : bench.measure(workload, request.options.seed)) {
      if (!team.leads()) continue;
      tools::print_text((request.json ? to_json_line(measurement) : to_text(measurement)) + "\n");
      ok = ok && measurement.pass();
    }
    passed += ok ? 1 : 0;
  }
  if (team.leads() && !request.json && (request.options.check || request.options.poison)) {
    tools::print_text(fmt::format("{} of {} layouts passed\n", passed, cases.size()));
  }
  return passed == cases.size() ? tools::exit_ok : tools::exit_check_failed;
}

int run(Request request) {
  if (request.list_packs) return list_packs();
  if (request.spawn) return spawn_ranks(request.options.world, request.children);
  const Team team = assemble(request);
  request.options.seed = team.agree_on(request.options.seed);
  return request.what == Request::What::exchange ? run_exchange(request, team) : run_attention(request, team);
}

}  // namespace
}  // namespace bdcp::bench

int main(int argc, char** argv) {
  const bdcp::bench::ParsedArgs args = bdcp::bench::parse_args(argc, argv);
  if (args.exit_code) return *args.exit_code;
  return bdcp::tools::run_tool("bdcp-bench", [&] { return bdcp::bench::run(args.request); });
}
