// Moves rows between devices by NCCL: grouped sends and receives on exact edges, all-gathers by the collective.
#pragma once

#include <memory>

#include "base/env.h"
#include "comm/control_channel.h"
#include "comm/stream_plane.h"

namespace bdcp::comm {

/// Opens nothing: libnccl is looked for when a device is, and the ncclComm_t is made by prepare().
std::unique_ptr<StreamPlane> make_nccl_plane(ControlChannel& channel, const Env& env);

}  // namespace bdcp::comm
