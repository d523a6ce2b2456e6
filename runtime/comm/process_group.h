// A group whose members are processes: a control channel and a data plane.
#pragma once

#include <functional>
#include <memory>

#include "comm/control_channel.h"
#include "comm/data_plane.h"
#include "comm/group.h"
#include "comm/stream_plane.h"

namespace bdcp::comm {

/// Built on the group's channel; no streams: no device memory is moved.
struct Planes {
  std::function<std::unique_ptr<DataPlane>(ControlChannel&)> host;
  std::function<std::unique_ptr<StreamPlane>(ControlChannel&)> streams = {};
};
/// The group owns the channel and its planes.
std::shared_ptr<Group> make_process_group(std::unique_ptr<ControlChannel> channel, const Planes& planes);

}  // namespace bdcp::comm
