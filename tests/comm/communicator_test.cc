#include "bdcp/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/group.h"
#include "comm/host_identity.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using testing::ElementsAre;

TEST(Communicator, SelfIsAWorldOfOne) {
  const Communicator self = Communicator::self();
  EXPECT_EQ(self.rank(), 0);
  EXPECT_EQ(self.size(), 1);
  EXPECT_EQ(self.group(), nullptr);
  EXPECT_THAT(self.hosts(), ElementsAre(comm::host_identity()));
  self.abort("nobody hears it");
  self.check();
}

TEST(Communicator, InProcessRanksShareNameAndHost) {
  const auto ranks = Communicator::in_process(3, {.name = "dp"});
  ASSERT_EQ(ranks.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const Communicator& handle = ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(handle.rank(), rank);
    EXPECT_EQ(handle.size(), 3);
    EXPECT_EQ(handle.name(), "dp");
    EXPECT_EQ(handle.hosts(), std::vector<std::string>(3, comm::host_identity()));
    handle.check();
  }
}

TEST(Communicator, HostsCanBeGivenToRehearseNodes) {
  const auto ranks = Communicator::in_process(2, {.hosts = {"a", "b"}});
  EXPECT_THAT(ranks[1].hosts(), ElementsAre("a", "b"));
}

TEST(Communicator, RefusesWorldsThatCannotBe) {
  test::expect_error(ErrorCode::invalid_argument, {"world_size is 0", "1 and above"},
                     [] { Communicator::in_process(0); });
  test::expect_error(ErrorCode::invalid_argument, {"hosts has 1 entries", "one per rank (2)"},
                     [] { Communicator::in_process(2, {.hosts = {"a"}}); });
}

TEST(Communicator, AbortNamesRankAndReasonOnEveryMember) {
  const auto ranks = Communicator::in_process(3);
  ranks[1].abort("the trainer gave up");
  ranks[2].abort("too late to matter");
  for (const Communicator& handle : ranks)
    test::expect_error(ErrorCode::peer_failed, {"rank 1", "the trainer gave up"}, [&] { handle.check(); });
}

TEST(HostIdentity, IsStableAndNamesTheHost) {
  EXPECT_EQ(comm::host_identity(), comm::host_identity());
  EXPECT_FALSE(comm::host_identity().empty());
}

}  // namespace
}  // namespace bdcp
