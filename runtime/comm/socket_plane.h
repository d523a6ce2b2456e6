// Moves rows between the host memories of processes over TCP, one connection per pair that has something to
// say.
#pragma once

#include <memory>

#include "comm/data_plane.h"

namespace bdcp::comm {

std::unique_ptr<DataPlane> make_socket_plane(ControlChannel& channel);

}  // namespace bdcp::comm
