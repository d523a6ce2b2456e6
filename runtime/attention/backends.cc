#include "attention/backend.h"

namespace bdcp::attention {

std::vector<std::unique_ptr<Backend>> make_backends() {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_hopper_backend());
  backends.push_back(make_portable_backend());
  backends.push_back(make_reference_backend());
  backends.push_back(make_host_backend());
  return backends;
}

}  // namespace bdcp::attention
