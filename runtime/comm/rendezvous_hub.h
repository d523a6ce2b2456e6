// RendezvousHub: where the processes of a job find each other, group by group.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/handshake.h"
#include "comm/join_message.h"
#include "comm/reactor.h"

namespace bdcp::comm {

/// Which job this is; a member of another run or an earlier start of it is refused.
struct JobKey {
  std::string run_id;
  std::uint32_t restart = 0;
  std::string secret;
};

/// Serves every group of the job for as long as the reactor lives. A group is known by its name and first rank,
/// and complete when all its ranks have come; until then its members hear who is missing. All on the reactor's
/// thread.
class RendezvousHub final : public Reactor::Watch, public std::enable_shared_from_this<RendezvousHub> {
 public:
  static std::shared_ptr<RendezvousHub> start(Reactor& reactor, Fd listener, const JobKey& job,
                                              const std::shared_ptr<const Log>& log);

  Deadline due() const override { return rooms_.empty() ? Deadline::max() : next_notice_; }
  void on_due() override;
  void on_exception(const std::string& what) override;

 private:
  class Visitor;
  using Room = std::map<int, std::shared_ptr<Visitor>>;  // by group rank
  RendezvousHub(Reactor& reactor, JobKey job, std::shared_ptr<const Log> log);
  std::string admit(const Hello& hello) const;
  void join(const std::shared_ptr<Visitor>& visitor, JoinRequest request);
  void complete(Room& room);
  void forget(const Visitor& visitor);

  Reactor& reactor_;
  const JobKey job_;
  const std::shared_ptr<const Log> log_;
  std::map<std::pair<std::string, int>, Room> rooms_;
  Deadline next_notice_{};
};

}  // namespace bdcp::comm
