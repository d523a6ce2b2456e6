#include "comm/host_identity.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace bdcp::comm {
namespace {

std::string read_identity() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  std::string identity = name[0] ? name.data() : "unnamed-host";
  // Cloned machines may share a name; the boot id tells them apart.
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (file >> boot) identity += "#" + boot.substr(0, 8);
  return identity;
}

}  // namespace

const std::string& host_identity() {
  static const std::string identity = read_identity();  // a world of one is asked in every step
  return identity;
}

}  // namespace bdcp::comm
