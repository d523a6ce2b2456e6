// A libnccl for tests: logs calls by rank, and fails, stays busy or calls back on request. A rank number stands
// for a device.
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/nccl_abi.h"

namespace nccl = bdcp::device::nccl;
using nccl::Comm;
using nccl::Result;

/// What a Comm points at. Kept to the end of the process: a late call on a dead one shows in the log instead of
/// crashing.
struct bdcp_fake_comm {
  int rank = 0, size = 0;
  int busy = 0;  // polls until what is under way is done
  bool ended = false;
  std::string group;  // what the open one consists of
};

namespace {

struct State {
  int version = 22809;
  int busy_init = 0, busy_group = 0, busy_finalize = 0;
  Result async = nccl::success;
  std::map<std::string, Result> fails;
  std::map<std::string, int> calls;
  std::map<int, std::string> log;  // of each rank
  std::vector<const bdcp_fake_comm*> made;
  void (*on_group)() = nullptr;
};
State state;
std::deque<bdcp_fake_comm> comms;
std::recursive_mutex mutex;
thread_local bdcp_fake_comm* current = nullptr;  // of the open group

bdcp_fake_comm& of(Comm comm) { return *reinterpret_cast<bdcp_fake_comm*>(comm); }

Result enter(const char* name, Comm comm = nullptr, const std::string& text = "") {
  const std::lock_guard lock(mutex);
  ++state.calls[name];
  if (comm && of(comm).ended) ++state.calls["after the end"];
  if (comm && !text.empty()) state.log[of(comm).rank] += text + "\n";
  const auto failing = state.fails.find(name);
  return failing == state.fails.end() ? nccl::success : failing->second;
}

Result note(const char* name, Comm comm, const std::string& text) {
  current = &of(comm);
  current->group += text + ", ";
  return enter(name, comm);
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = state.version;
  return nccl::success;
}
const char* ncclGetErrorString(Result result) {
  return result == nccl::remote_error ? "remote process exited" : "fake";
}
const char* ncclGetLastError(Comm) { return "the fake's last words"; }
Result ncclGetUniqueId(nccl::UniqueId* id) {
  for (std::size_t i = 0; i < sizeof id->internal; ++i) id->internal[i] = static_cast<char>(i);
  return enter("ncclGetUniqueId");
}
Result ncclCommInitRankConfig(Comm* comm, int size, nccl::UniqueId id, int rank, nccl::Config* config) {
  const std::lock_guard lock(mutex);
  bool good = config->size == sizeof(nccl::Config) && config->magic == 0xcafebeef && config->blocking == 0 &&
              config->max_ctas == 16 && config->cga_cluster_size == 0;
  for (std::size_t i = 0; i < sizeof id.internal; ++i) good = good && id.internal[i] == static_cast<char>(i);
  bdcp_fake_comm* const made = &comms.emplace_back(bdcp_fake_comm{rank, size, state.busy_init, false, {}});
  *comm = reinterpret_cast<Comm>(made);
  state.made.push_back(made);
  if (!good) return nccl::invalid_argument;
  const Result result = enter("ncclCommInitRankConfig", *comm, "init");
  return result == nccl::success ? nccl::in_progress : result;
}
Result ncclCommGetAsyncError(Comm comm, Result* result) {
  const std::lock_guard lock(mutex);
  const Result own = enter("ncclCommGetAsyncError", comm);
  *result = state.async != nccl::success ? state.async : of(comm).busy > 0 ? nccl::in_progress : nccl::success;
  if (of(comm).busy > 0) --of(comm).busy;
  return own;
}
Result ncclCommFinalize(Comm comm) {
  const std::lock_guard lock(mutex);
  of(comm).busy = state.busy_finalize;
  return enter("ncclCommFinalize", comm, "finalize");
}
Result ncclCommDestroy(Comm comm) {
  const std::lock_guard lock(mutex);
  const Result result = enter("ncclCommDestroy", comm, "destroy");
  of(comm).ended = true;
  return result;
}
Result ncclCommAbort(Comm comm) {
  const std::lock_guard lock(mutex);
  const Result result = enter("ncclCommAbort", comm, "abort");
  of(comm).ended = true;
  return result;
}
Result ncclCommCount(Comm comm, int* count) {
  *count = of(comm).size;
  return nccl::success;
}
Result ncclCommUserRank(Comm comm, int* rank) {
  *rank = of(comm).rank;
  return nccl::success;
}
Result ncclCommCuDevice(Comm, int* device) {
  *device = 0;
  return nccl::success;
}
Result ncclGroupStart() {
  current = nullptr;
  return enter("ncclGroupStart");
}
Result ncclGroupEnd() {
  const std::lock_guard lock(mutex);
  const Comm comm = reinterpret_cast<Comm>(current);
  const Result result = enter("ncclGroupEnd", comm, current ? "group: " + current->group : "");
  if (current) current->group.clear();
  if (result != nccl::success || !current) return result;
  if (state.on_group) state.on_group();
  for (const bdcp_fake_comm* other : state.made)
    if (other != current && other->rank == current->rank && !other->ended && other->busy > 0)
      ++state.calls["during another launch"];
  current->busy = state.busy_group;
  return current->busy > 0 ? nccl::in_progress : nccl::success;
}
Result ncclSend(const void*, std::size_t count, int, int peer, Comm comm, void*) {
  return note("ncclSend", comm, "send " + std::to_string(count) + " to " + std::to_string(peer));
}
Result ncclRecv(void*, std::size_t count, int, int peer, Comm comm, void*) {
  return note("ncclRecv", comm, "recv " + std::to_string(count) + " from " + std::to_string(peer));
}
Result ncclAllGather(const void*, void*, std::size_t count, int, Comm comm, void*) {
  return note("ncclAllGather", comm, "gather " + std::to_string(count));
}
Result ncclBroadcast(const void*, void*, std::size_t, int, int, Comm comm, void*) {
  return enter("ncclBroadcast", comm, "broadcast");
}

void fake_nccl_reset() {
  const std::lock_guard lock(mutex);
  state = State();
}
void fake_nccl_version(int version) { state.version = version; }
/// Polls that creation, groups and the end take from now on.
void fake_nccl_busy(int init, int groups, int finalize) {
  const std::lock_guard lock(mutex);
  state.busy_init = init;
  state.busy_group = groups;
  state.busy_finalize = finalize;
}
void fake_nccl_async(int result) {
  const std::lock_guard lock(mutex);
  state.async = static_cast<Result>(result);
}
void fake_nccl_fail(const char* function, int result) {
  const std::lock_guard lock(mutex);
  state.fails[function] = static_cast<Result>(result);
}
/// Called when a group ends, on its thread.
void fake_nccl_on_group(void (*call)()) {
  const std::lock_guard lock(mutex);
  state.on_group = call;
}
int fake_nccl_calls(const char* function) {
  const std::lock_guard lock(mutex);
  return state.calls[function];
}
/// Valid while nobody calls.
const char* fake_nccl_log(int rank) {
  const std::lock_guard lock(mutex);
  return state.log[rank].c_str();
}
}
