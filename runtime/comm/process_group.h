// A group whose members are processes: a control channel and a data plane.
#pragma once

#include <functional>
#include <memory>

#include "comm/control_channel.h"
#include "comm/data_plane.h"
#include "comm/group.h"

namespace bdcp::comm {

/// The group owns the channel, and the plane that make_plane builds on it.
std::shared_ptr<Group> make_process_group(
    std::unique_ptr<ControlChannel> channel,
    const std::function<std::unique_ptr<DataPlane>(ControlChannel&)>& make_plane);

}  // namespace bdcp::comm
