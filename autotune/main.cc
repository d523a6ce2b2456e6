// bdcp-autotune: prepares kernel caches and measures exchanges. JSON and text go to stdout, progress and logs
// to stderr.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "autotune/exchange_file.h"
#include "autotune/exit_code.h"
#include "autotune/spawn.h"
#include "autotune/warm.h"
#include "autotune/warm_report.h"
#include "bdcp/error.h"

namespace {

using namespace bdcp::autotune;

bool print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return true;
  std::fputs("bdcp-autotune: stdout cannot be written\n", stderr);
  return false;
}

struct WarmCommand {
  WarmOptions options;
  std::string cache;
  bdcp::Policy::Sources policy;
  bool json = false;
  CLI::App* app = nullptr;
  CLI::Option* cache_option = nullptr;

  explicit WarmCommand(CLI::App& parent) {
    app = parent.add_subcommand("warm", "Compile every kernel that models need; no GPU is needed");
    app->add_option("--arch", options.archs, "Architectures: sm_90a,sm_80")->required()->delimiter(',');
    app->add_option("--model", options.models, "Shipped model, model file, or 'all'; may be repeated")
        ->required();
    cache_option = app->add_option("--cache", cache,
                                   "Cache folder (default: BDCP_CACHE_DIR, else the user's cache folder)");
    app->add_option("--policy", policy.file,
                    "Policy file that steps will run under (default: BDCP_POLICY, else the built-in one)");
    app->add_option("--jobs", options.jobs, "Compiles at the same time (default: number of cores)")
        ->check(CLI::Range(0, 4096));
    app->add_flag("--json", json, "One JSON object on stdout");
  }
  int run() {
    if (cache_option->count() > 0) options.cache = cache;
    options.bar = stderr_is_terminal();
    options.policy = bdcp::Policy::load(policy);
    const WarmReport report = warm(options, bdcp::Env::from_process());
    if (!print(json ? to_json(report) + "\n" : to_text(report))) return kExitEnvironment;
    if (!report.environment.empty()) std::fprintf(stderr, "bdcp-autotune: %s\n", report.environment.c_str());
    return exit_code_of(report);
  }
};

struct ExchangeCommand {
  ExchangeTuning tuning;
  int world = 1;
  bool spawn = false, json = false;
  CLI::App* app = nullptr;
  CLI::Option* world_option = nullptr;

  explicit ExchangeCommand(CLI::App& parent) {
    app = parent.add_subcommand(
        "exchange", "Measure what moving rows between ranks takes, for exchange.measured and path auto");
    app->add_option("--out", tuning.file, "File to write; its rows of other settings stay")->required();
    app->add_flag("--spawn", spawn, "Start one process per rank, each on a GPU of its own");
    world_option = app->add_option("--world", world,
                                   "Ranks: all in this process and on one device, processes with --spawn, or "
                                   "those that torchrun, mpirun or srun started")
                       ->check(CLI::Range(2, 1024));
    ExchangeOptions& options = tuning.measure;
    app->add_option("--sizes", options.sizes, "Bytes of a transfer; default: 64 KiB to 256 MiB in steps of 4")
        ->delimiter(',')
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 36));
    app->add_option("--iters", options.iters, "Transfers in a row")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app->add_option("--device", options.device, "auto, host or a CUDA ordinal")->capture_default_str();
    app->add_option("--ranks-per-node", tuning.ranks_per_node,
                    "As exchange.ranks_per_node of the policy; default: nodes are told from hosts")
        ->check(CLI::Range(1, 1048576));
    app->add_flag("--json", json, "One JSON line per measurement on stdout");
  }
  int run(int argc, const char* const* argv) {
    if (spawn) {
      std::vector<std::string> arguments;
      for (int i = 1; i < argc; ++i)
        if (std::string_view(argv[i]) != "--spawn") arguments.emplace_back(argv[i]);
      return spawn_ranks("bdcp-autotune", world, arguments);
    }
    if (tuning.measure.sizes.empty()) tuning.measure.sizes = default_sizes();
    const Team team = Team::assemble(world_option->count() > 0 ? std::optional(world) : std::nullopt,
                                     "autotune", bdcp::Env::from_process());
    const std::vector<ExchangeLine> lines = tune_exchange(tuning, team);
    if (!team.leads()) return kExitOk;
    std::string text;
    for (const ExchangeLine& line : lines) text += (json ? to_json_line(line) : to_text(line)) + "\n";
    return print(text) ? kExitOk : kExitEnvironment;
  }
};

}  // namespace

int main(int argc, char** argv) {
  end_with_launcher();
  CLI::App app{"Prepares bdcp's kernel caches and measures exchanges", "bdcp-autotune"};
  app.require_subcommand(1);
  app.footer("Exit codes: 0 ok, 2 usage, 3 invalid input, 4 the environment lacks something, 5 a check failed");
  WarmCommand warm_command(app);
  ExchangeCommand exchange_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  try {
    return warm_command.app->parsed() ? warm_command.run() : exchange_command.run(argc, argv);
  } catch (const bdcp::Error& error) {
    std::fprintf(stderr, "bdcp-autotune: %s\n", error.message().c_str());
    if (!error.log().empty()) std::fprintf(stderr, "%s\n", error.log().c_str());
    return exit_code_of(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bdcp-autotune: %s\n", error.what());
    return kExitEnvironment;
  }
}
