// bdcp-policy-reference README.md: rewrites the generated part of the file. --check only compares: exit 5 when
// it is out of date.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "policy_markdown.h"

int main(int argc, char** argv) {
  const bool check = argc == 3 && std::string(argv[1]) == "--check";
  if (argc != 2 && !check) {
    fmt::print(stderr, "usage: bdcp-policy-reference [--check] README.md\n");
    return 2;
  }
  const std::string path = argv[argc - 1];
  try {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      fmt::print(stderr, "{} cannot be read\n", path);
      return 3;
    }
    const std::string before((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::string after = bdcp::docs::with_policy_reference(before);
    if (before == after) return 0;
    if (check) {
      fmt::print(stderr, "{} is out of date: run bdcp-policy-reference {}\n", path, path);
      return 5;
    }
    std::ofstream out(path, std::ios::binary);
    out << after;
    out.close();
    if (!out) {
      fmt::print(stderr, "{} cannot be written\n", path);
      return 4;
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
