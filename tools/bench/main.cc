// bdcp-bench: times attention over packed documents and checks its numbers.
#include <fmt/format.h>

#include "autotune/spawn.h"
#include "base/env.h"
#include "bench/cli.h"
#include "bench/report.h"
#include "common/cli.h"
#include "common/workloads.h"

namespace bdcp::bench {
namespace {

int list_packs() {
  for (const std::string& name : tools::pack_names()) tools::print_text(name + "\n");
  tools::print_text("uLEN      documents of LEN tokens, 32768 in all\noneTOKENS, oneNk  one document\n");
  return tools::exit_ok;
}

int run_exchange(const Request& request, const Team& team) {
  autotune::measure_exchange(request.exchange, team, [&](const autotune::ExchangeLine& line) {
    if (team.leads())
      tools::print_text((request.json ? autotune::to_json_line(line) : autotune::to_text(line)) + "\n");
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
  if (request.spawn) return autotune::spawn_ranks("bdcp-bench", request.options.world, request.children);
  const Team team = Team::assemble(request.world_given ? std::optional(request.options.world) : std::nullopt,
                                   "bench", Env::from_process());
  request.options.world = team.world();
  request.options.seed = team.agree_on(request.options.seed);
  return request.what == Request::What::exchange ? run_exchange(request, team) : run_attention(request, team);
}

}  // namespace
}  // namespace bdcp::bench

int main(int argc, char** argv) {
  bdcp::autotune::end_with_launcher();
  const bdcp::bench::ParsedArgs args = bdcp::bench::parse_args(argc, argv);
  if (args.exit_code) return *args.exit_code;
  return bdcp::tools::run_tool("bdcp-bench", [&] { return bdcp::bench::run(args.request); });
}
