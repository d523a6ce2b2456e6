// Tiles of a document from an earlier rank begin with their local keys while the remote ones are on their way.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/hopper_work.h"

namespace bdcp::attention {

/// Takes remote tiles of `work` apart, blocks of `keys` being kept whole: a local item for the local keys,
/// whose state is kept, and a remote one for the others, which goes on from it. As many tiles as it takes for
/// local items of `pairs` pairs of rows and keys, but not more than `most`, of all lengths, so that the SMs end
/// together. Local items come first, then the tiles of local documents as they were; the remote part is sorted
/// by length. Returns how many tiles were taken apart: the number of states. Of none, `work` is as it was.
std::size_t stage_tiles(HopperWork& work, std::int64_t remote_len, int keys, std::int64_t pairs,
                        std::size_t most);

}  // namespace bdcp::attention
