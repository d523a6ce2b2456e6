// Private to runtime.cc and begin_step.cc: what a Runtime owns.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "base/env.h"
#include "bdcp/runtime.h"
#include "comm/call_ledger.h"
#include "device/device.h"
#include "device/stream_counters.h"
#include "device/tables.h"
#include "group_policy.h"
#include "step_impl.h"

namespace bdcp {

struct Runtime::Impl {
  explicit Impl(RuntimeOptions given);

  /// The driver, opened on first need; null where there is none, with the reason in driver_error().
  std::shared_ptr<const device::Driver> driver();
  std::string driver_error();

  /// State per communicator: its step counter, whose turn it is to agree, and the policy its members last
  /// agreed on.
  struct CommState {
    std::weak_ptr<comm::Group> group;
    std::uint64_t issued = 0;                   ///< guarded by Impl::mutex
    std::shared_ptr<const Policy> active;       ///< likewise; null until a first agreement
    std::shared_ptr<const GroupPolicy> policy;  ///< likewise; of the latest step
    std::mutex turn_mutex;                      ///< guards what follows
    std::condition_variable turn;
    std::uint64_t agreed = 0;
    std::set<std::uint64_t> passed;  ///< numbers that are done before their turn has come
    void wait_for(std::uint64_t number);
    void pass(std::uint64_t number);
  };
  /// A step's place in its communicator's order, taken on the thread that issues it. Whatever becomes of the
  /// step, its place is passed on, at the latest with the last copy of the ticket.
  struct Ticket {
    std::shared_ptr<CommState> state;
    std::uint64_t number = 0;
    std::optional<comm::LedgerSnapshot> calls;
    std::shared_ptr<void> place;  ///< passes the turn on when it goes
  };
  Ticket issue(const Communicator& comm);

  /// What `active` and `newest` mean to the ticket's communicator.
  std::shared_ptr<const GroupPolicy> group_policy(const Ticket& ticket, const Communicator& comm,
                                                  const std::shared_ptr<const Policy>& active,
                                                  const std::shared_ptr<const Policy>& newest);
  /// Where steps on the device keep their work lists.
  /// What steps on one device share.
  struct DeviceMemory {
    std::shared_ptr<device::TablePool> tables;
    std::shared_ptr<device::StreamCounters> counters;
    std::shared_ptr<comm::ExposureMeter> meter;
  };
  DeviceMemory device_memory(const std::shared_ptr<device::Device>& device);

  Step begin_step(const DocLayout& layout, std::span<const CallShape> shapes, const Communicator& comm,
                  const StepOptions& options, const Ticket& ticket);

  RuntimeOptions options;
  Env env;
  StepServices services;
  std::vector<std::unique_ptr<attention::Backend>> backends;
  PolicyValues::OnMiss on_miss;  ///< as the kernel cache was made
  std::string templates_hash;    ///< of all kernel templates, for the consensus

  std::mutex mutex;  ///< guards what follows
  std::shared_ptr<const Policy> latest;
  std::map<const comm::Group*, std::shared_ptr<CommState>> communicators;
  std::map<const device::Device*, DeviceMemory> memory_of_devices;  ///< which keeps the devices
  bool driver_tried = false;
  std::shared_ptr<const device::Driver> driver_handle;
  std::string driver_why;

  /// A warning or event for the embedder.
  void emit(const std::string& kind, const std::string& text) const;
};

/// Throws Error(invalid_argument) naming the field.
void validate_shape(const CallShape& shape, std::size_t index);

}  // namespace bdcp
