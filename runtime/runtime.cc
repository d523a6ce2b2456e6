#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attention/options.h"
#include "base/check.h"
#include "comm/kv_exchange.h"
#include "jit/content_hash.h"
#include "jit/kernel_info.h"
#include "jit/spec_key.h"
#include "runtime_impl.h"

namespace bdcp {

RuntimeOptions RuntimeOptions::from_file(const std::string& path) {
  RuntimeOptions options;
  Policy::Sources sources;
  sources.file = path;
  options.policy = Policy::load(sources);
  return options;
}

void validate_shape(const CallShape& s, std::size_t index) {
  const auto bad = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, fmt::format("shapes[{}].{}", index, what));
  };
  if (s.heads_kv < 1) bad(fmt::format("heads_kv is {}; it must be at least 1", s.heads_kv));
  if (s.heads_q < 1 || s.heads_q % s.heads_kv != 0)
    bad(fmt::format("heads_q is {}; it must be a positive multiple of heads_kv = {}", s.heads_q, s.heads_kv));
  if (s.head_dim < 1) bad(fmt::format("head_dim is {}; it must be at least 1", s.head_dim));
  if (s.head_dim_v < 0)
    bad(fmt::format("head_dim_v is {}; it must be positive, or 0 for head_dim", s.head_dim_v));
  if (s.scale && !(std::isfinite(*s.scale) && *s.scale > 0))
    bad(fmt::format("scale is {}; it must be finite and > 0", *s.scale));
  if (!(s.dropout_p >= 0 && s.dropout_p < 1))
    bad(fmt::format("dropout_p is {}; it must be in [0, 1)", s.dropout_p));
}

Runtime::Impl::Impl(RuntimeOptions given) : options(std::move(given)), env(Env::from_process()) {
  latest = std::make_shared<const Policy>(options.policy);
  const PolicyValues values = options.policy.resolve();
  services.log = std::make_shared<Log>(values.log.level, options.log_sink);
  services.metrics = std::make_shared<Metrics>();
  services.downgrades = std::make_shared<policy::DowngradeLog>();
  jit::CacheOptions cache;
  cache.cache_dir = values.kernels.cache_dir;
  cache.seed_dirs = values.kernels.seed_dirs;
  cache.on_miss = on_miss = values.kernels.on_miss;
  cache.jobs = values.kernels.jobs;
  if (options.event_sink)
    cache.on_compile = [sink = options.event_sink](const std::string& text) { sink({"compile", text}); };
  services.cache = std::make_shared<jit::KernelCache>(std::move(cache), env, services.log);
  if (!values.kernels.tuned.empty())
    services.log->warn("kernels.tuned: no kernel of this build reads tuned tables; the files are ignored");
  backends = attention::make_backends();
  services.events = options.event_sink;
  std::string templates;
  for (const EmbeddedFile& file : jit::embedded_sources()) templates.append(file.name).append(file.text);
  templates_hash = jit::content_hash(templates);
}

void Runtime::Impl::emit(const std::string& kind, const std::string& text) const {
  if (options.event_sink) options.event_sink({kind, text});
}

std::shared_ptr<const device::Driver> Runtime::Impl::driver() {
  std::lock_guard lock(mutex);
  if (!driver_tried) {
    driver_handle = device::Driver::open(env, &driver_why);
    driver_tried = true;
  }
  return driver_handle;
}

std::string Runtime::Impl::driver_error() {
  std::lock_guard lock(mutex);
  return driver_why;
}

void Runtime::Impl::CommState::wait_for(std::uint64_t number) {
  std::unique_lock lock(turn_mutex);
  turn.wait(lock, [&] { return agreed == number; });
}

void Runtime::Impl::CommState::pass(std::uint64_t number) {
  std::lock_guard lock(turn_mutex);
  if (number < agreed) return;
  passed.insert(number);
  while (passed.erase(agreed) > 0) ++agreed;
  turn.notify_all();
}

Runtime::Impl::Ticket Runtime::Impl::issue(const Communicator& comm) {
  comm::Group* group = comm.group().get();
  if (group) group->check();  // a failed communicator, or one of a parent process, takes no more steps
  std::lock_guard lock(mutex);
  std::erase_if(communicators, [](const auto& entry) { return entry.first && entry.second->group.expired(); });
  std::shared_ptr<CommState>& state = communicators[group];
  if (!state) state = std::make_shared<CommState>();
  state->group = comm.group();
  Ticket ticket{state, state->issued, std::nullopt, nullptr};
  if (group) ticket.calls = group->ledger().snapshot();
  ticket.place =
      std::shared_ptr<void>(nullptr, [state = state, number = ticket.number](void*) { state->pass(number); });
  ++state->issued;
  return ticket;
}

std::shared_ptr<const GroupPolicy> Runtime::Impl::group_policy(const Ticket& ticket, const Communicator& comm,
                                                               const std::shared_ptr<const Policy>& active,
                                                               const std::shared_ptr<const Policy>& newest) {
  {
    std::lock_guard lock(mutex);
    const auto& known = ticket.state->policy;
    if (known && known->holds_for(active.get(), newest.get(), comm)) return known;
  }
  auto made = std::make_shared<const GroupPolicy>(active, newest, comm);
  std::lock_guard lock(mutex);
  return ticket.state->policy = std::move(made);
}

Runtime::Impl::DeviceMemory Runtime::Impl::device_memory(const std::shared_ptr<device::Device>& device) {
  std::lock_guard lock(mutex);
  DeviceMemory& memory = memory_of_devices[device.get()];
  if (!memory.tables) memory.tables = std::make_shared<device::TablePool>(device);
  if (!memory.counters) memory.counters = std::make_shared<device::StreamCounters>(device);
  if (!memory.meter) memory.meter = std::make_shared<comm::ExposureMeter>(device);
  return memory;
}

Runtime Runtime::create(RuntimeOptions options) { return Runtime(std::make_shared<Impl>(std::move(options))); }

Step Runtime::begin_step(const DocLayout& layout, std::span<const CallShape> shapes, const Communicator& comm,
                         const StepOptions& options) const {
  return impl_->begin_step(layout, shapes, comm, options, impl_->issue(comm));
}

Step Runtime::begin_step(const DocLayout& layout, const CallShape& shape, const Communicator& comm,
                         const StepOptions& options) const {
  return impl_->begin_step(layout, std::span(&shape, 1), comm, options, impl_->issue(comm));
}

std::future<Step> Runtime::begin_step_async(const DocLayout& layout, std::vector<CallShape> shapes,
                                            const Communicator& comm, const StepOptions& options) const {
  return std::async(std::launch::async, [impl = impl_, layout, shapes = std::move(shapes), comm, options,
                                         ticket = impl_->issue(comm)] {
    return impl->begin_step(layout, shapes, comm, options, ticket);
  });
}

namespace {

std::vector<jit::KernelSpec> specs_within(const std::vector<std::unique_ptr<attention::Backend>>& backends,
                                          std::span<const CallShape> shapes, const KernelLimits& limits,
                                          const Policy& policy) {
  std::vector<jit::KernelSpec> specs;
  const auto add = [&](std::vector<jit::KernelSpec> more) {
    for (jit::KernelSpec& spec : more)
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(std::move(spec));
  };
  const std::vector<attention::Options> every_options = attention::options_under(policy);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    validate_shape(shapes[i], i);
    for (const attention::Options& options : every_options) {
      for (const auto& backend : backends)
        add(backend->required_kernels(shapes[i], limits.arch, limits.distributed, options));
      if (limits.distributed) add(comm::required_kernels(shapes[i].dtype, options.payload_f32, limits.arch));
    }
  }
  return specs;
}

}  // namespace

std::vector<KernelInfo> Runtime::required_kernels(std::span<const CallShape> shapes,
                                                  const KernelLimits& limits) const {
  std::vector<KernelInfo> infos;
  for (const jit::KernelSpec& spec : specs_within(impl_->backends, shapes, limits, policy())) {
    KernelInfo info;
    info.key = jit::make_spec_key(spec, jit::embedded_sources()).base;
    info.kernel = spec.kernel;
    info.arch = spec.arch;
    info.smem_bytes = spec.dynamic_smem;
    infos.push_back(std::move(info));
  }
  return infos;
}

std::vector<KernelInfo> Runtime::warm(std::span<const CallShape> shapes, const KernelLimits& limits) const {
  const auto specs = specs_within(impl_->backends, shapes, limits, policy());
  std::vector<std::string> errors;
  const auto kernels = impl_->services.cache->get_all(specs, &errors);
  std::vector<KernelInfo> infos;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (!kernels[i] && !impl_->services.cache->why_no_compiler().empty())
      throw Error(ErrorCode::library_missing, impl_->services.cache->why_no_compiler());
    if (!kernels[i])
      throw Error(ErrorCode::compile_failed,
                  fmt::format("kernel {} for {} failed", specs[i].kernel, specs[i].arch))
          .with_log(errors[i]);
    infos.push_back(jit::info_of(*kernels[i]));
  }
  return infos;
}

Policy Runtime::policy() const {
  std::lock_guard lock(impl_->mutex);
  return *impl_->latest;
}

void Runtime::reload(Policy policy) const {
  const PolicyValues values = policy.resolve();
  std::lock_guard lock(impl_->mutex);
  const PolicyValues::Kernels before = impl_->latest->resolve().kernels, &now = values.kernels;
  if (before.on_miss != now.on_miss || before.cache_dir != now.cache_dir || before.seed_dirs != now.seed_dirs ||
      before.jobs != now.jobs || before.tuned != now.tuned)
    impl_->services.log->warn(
        "reload: changed kernels.* fields take effect in a new Runtime; this one keeps its cache");
  impl_->latest = std::make_shared<const Policy>(std::move(policy));
  impl_->services.log->set_level(values.log.level);
}

std::string Runtime::metrics_json() const {
  const Metrics& m = *impl_->services.metrics;
  const jit::CacheStats c = impl_->services.cache->stats();
  nlohmann::ordered_json json;
  json["steps"] = m.steps.load();
  json["failed_steps"] = m.failed_steps.load();
  json["forward_calls"] = m.forward_calls.load();
  json["backward_calls"] = m.backward_calls.load();
  json["failed_calls"] = m.failed_calls.load();
  json["recaptures"] = m.recaptures.load();
  std::vector<std::shared_ptr<comm::ExposureMeter>> meters;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [unused, memory] : impl_->memory_of_devices) meters.push_back(memory.meter);
  }
  for (const auto& meter : meters) meter->read();
  const comm::ExposedTime& exposed = *m.exposed;
  json["exchange"] = {{"exposed_forward_us", exposed.us(Direction::forward)},
                      {"exposed_backward_us", exposed.us(Direction::backward)},
                      {"forward_waits", exposed.waits(Direction::forward)},
                      {"backward_waits", exposed.waits(Direction::backward)},
                      {"untimed_waits", exposed.missed()}};
  json["not_mine"] = nlohmann::json::object();
  for (const auto& [code, count] : m.not_mine()) json["not_mine"][code] = count;
  json["downgrades"] = nlohmann::json::object();
  for (const auto& [code, count] : impl_->services.downgrades->counts()) json["downgrades"][code] = count;
  json["kernel_cache"] = {{"memory_hits", c.memory_hits},
                          {"disk_hits", c.disk_hits},
                          {"seed_hits", c.seed_hits},
                          {"misses", c.misses},
                          {"compiled", c.compiled},
                          {"failed", c.failed},
                          {"corrupt", c.corrupt},
                          {"publish_failures", c.publish_failures},
                          {"directory", impl_->services.cache->directory()}};
  return json.dump();
}

}  // namespace bdcp
