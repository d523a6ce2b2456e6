// Which folder the disk cache uses, and whether it may be trusted: a cubin is code.
#pragma once

#include <optional>
#include <string>

#include "base/env.h"

namespace bdcp::jit {

struct StoreRoot {
  std::string path;  ///< empty: memory only
  std::string
      warning;  ///< why there is no folder, with path, errno and what to set; empty when that is asked for
};

/// `wanted`: null: BDCP_CACHE_DIR, $XDG_CACHE_HOME/bdcp, $HOME/.cache/bdcp; "": memory only. Creates nothing.
/// Refuses folders that this user neither can create, or that another user could write to.
StoreRoot choose_store_root(const std::optional<std::string>& wanted, const Env& env);

/// Empty, or why a seed folder (read only; named by the user, so its owner is not checked) is not used.
std::string why_not_seed(const std::string& path);

}  // namespace bdcp::jit
