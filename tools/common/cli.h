// What every program does the same way: exit codes, errors on stderr, JSON on stdout.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bdcp/error.h"

namespace bdcp::tools {

enum ExitCode : int {
  exit_ok = 0,
  exit_usage = 2,          ///< the command line itself is wrong
  exit_invalid_input = 3,  ///< well-formed options whose content no call accepts
  exit_environment = 4,    ///< the machine lacks something: library, device, memory, file access
  exit_check_failed = 5    ///< the program worked, and what it checked did not hold
};

/// The exit code an error that nobody handled ends the program with.
ExitCode exit_code(const Error& error);

/// Runs `body`; errors end as one line "NAME: message" on stderr (with the log, where there is one) and an exit
/// code. Standard exceptions are out of memory (4) or a defect (5).
int run_tool(const std::string& name, const std::function<int()>& body);

/// One JSON document and a newline on stdout. Throws Error(io_error) when stdout takes no more.
void print_json(const nlohmann::json& document);
void print_json(const nlohmann::ordered_json& document);  ///< keys in the order they were added
/// Text as it is on stdout. Throws Error(io_error) likewise.
void print_text(const std::string& text);

}  // namespace bdcp::tools
