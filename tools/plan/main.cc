#include "common/cli.h"
#include "explain.h"

int main(int argc, char** argv) {
  return bdcp::tools::run_tool("bdcp-plan", [&]() -> int {
    const bdcp::tools::ParsedPlanOptions parsed = bdcp::tools::parse_plan_options(argc, argv);
    if (parsed.exit_code) return *parsed.exit_code;
    const bdcp::tools::Explanation explanation = bdcp::tools::explain(parsed.options);
    bdcp::tools::print_text(parsed.options.json ? to_json_text(explanation) : to_text(explanation));
    return bdcp::tools::exit_ok;
  });
}
