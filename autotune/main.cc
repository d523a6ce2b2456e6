// bdcp-autotune: prepares kernel caches. JSON and text go to stdout, progress and logs to stderr.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "autotune/exit_code.h"
#include "autotune/warm.h"
#include "autotune/warm_report.h"
#include "bdcp/error.h"

namespace {

using namespace bdcp::autotune;

int run_warm(const WarmOptions& options, bool json) {
  const WarmReport report = warm(options, bdcp::Env::from_process());
  const std::string text = json ? to_json(report) + "\n" : to_text(report);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fputs("bdcp-autotune: stdout cannot be written\n", stderr);
    return kExitEnvironment;
  }
  if (!report.environment.empty()) std::fprintf(stderr, "bdcp-autotune: %s\n", report.environment.c_str());
  return exit_code_of(report);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Prepares bdcp's kernel caches", "bdcp-autotune"};
  app.require_subcommand(1);
  app.footer("Exit codes: 0 ok, 2 usage, 3 invalid input, 4 the environment lacks something, 5 a check failed");

  WarmOptions options;
  bool json = false;
  std::string cache;
  bdcp::Policy::Sources policy;
  CLI::App* warm_command =
      app.add_subcommand("warm", "Compile every kernel that models need; no GPU is needed");
  warm_command->add_option("--arch", options.archs, "Architectures: sm_90a,sm_80")->required()->delimiter(',');
  warm_command->add_option("--model", options.models, "Shipped model, model file, or 'all'; may be repeated")
      ->required();
  CLI::Option* cache_option = warm_command->add_option(
      "--cache", cache, "Cache folder (default: BDCP_CACHE_DIR, else the user's cache folder)");
  warm_command->add_option(
      "--policy", policy.file,
      "Policy file that steps will run under (default: BDCP_POLICY, else the built-in one)");
  warm_command->add_option("--jobs", options.jobs, "Compiles at the same time (default: number of cores)")
      ->check(CLI::Range(0, 4096));
  warm_command->add_flag("--json", json, "One JSON object on stdout");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (cache_option->count() > 0) options.cache = cache;
  options.bar = stderr_is_terminal();
  try {
    options.policy = bdcp::Policy::load(policy);
    return run_warm(options, json);
  } catch (const bdcp::Error& error) {
    std::fprintf(stderr, "bdcp-autotune: %s\n", error.message().c_str());
    if (!error.log().empty()) std::fprintf(stderr, "%s\n", error.log().c_str());
    return exit_code_of(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bdcp-autotune: %s\n", error.what());
    return kExitEnvironment;
  }
}
