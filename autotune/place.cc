#include "autotune/place.h"

#include <fmt/format.h>

#include <charconv>

#include "base/check.h"
#include "base/env.h"
#include "comm/launcher_env.h"

namespace bdcp::autotune {

Place open_place(const std::string& wanted, bool prefer_host, std::string* name) {
  *name = "host";
  if (wanted == "host" || (wanted == "auto" && prefer_host)) return {};
  const Env env = Env::from_process();
  int ordinal = comm::local_rank(env.launcher);
  if (wanted != "auto") {
    const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), ordinal);
    require(error == std::errc() && end == wanted.data() + wanted.size() && ordinal >= 0,
            ErrorCode::invalid_argument,
            [&] { return fmt::format("device is \"{}\"; allowed: auto, host, a CUDA ordinal", wanted); });
  }
  std::string why;
  const auto driver = device::Driver::open(env, &why);
  if (!driver && wanted == "auto") return {};
  require(driver != nullptr, ErrorCode::library_missing,
          [&] { return fmt::format("device {}: {}", ordinal, why); });
  if (driver->device_count() == 0 && wanted == "auto") return {};
  if (wanted == "auto")
    ordinal %= driver->device_count();  // a launcher may show each process its own device alone
  require(ordinal < driver->device_count(), ErrorCode::invalid_argument, [&] {
    return fmt::format("device is {}; this process sees {} CUDA device(s)", ordinal, driver->device_count());
  });
  Place place{Memory(driver->device(ordinal)), ordinal};
  *name = place.memory.device().facts().name;
  return place;
}

}  // namespace bdcp::autotune
