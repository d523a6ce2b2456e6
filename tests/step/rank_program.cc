// One rank of the multi-process tests: what it does is in its arguments (key=value), what happened in its
// lines.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "comm/consensus.h"
#include "device/dynamic_library.h"
#include "step/device_rank.h"
#include "step/rank_cases.h"
#include "support/policy_fields.h"

namespace bdcp::test {
namespace {

using Arguments = std::map<std::string, std::string>;

struct Setting {
  Arguments given;
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto found = given.find(key);
    return found == given.end() ? otherwise : found->second;
  }
  double number(const std::string& key, double otherwise) const {
    return given.count(key) ? std::stod(given.at(key)) : otherwise;
  }
  bool is(const std::string& key, const std::string& value) const { return text(key) == value; }
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void say_error(const Error& error) {
  say("error " + std::string(to_string(error.code())) + " origin " + std::to_string(error.origin_rank()) +
      " scope " + std::string(to_string(error.scope())) + ": " + error.message());
}

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

Runtime runtime_of(const Setting& setting, std::vector<std::pair<std::string, std::string>> more = {}) {
  RuntimeOptions options;
  Policy::Sources sources;
  sources.ignore_env = !setting.is("env", "yes");
  sources.code = {{"attention.backend", setting.is("on", "gpu") ? "\"reference\"" : "\"host\""}};
  for (const char* field : {"exchange.path", "exchange.ranks_per_node", "agreement.timeout_s",
                            "agreement.heartbeat_s", "failure.exchange_timeout_s"})
    if (setting.given.count(field)) sources.code.emplace_back(field, setting.text(field));
  for (auto& field : more) sources.code.push_back(std::move(field));
  options.policy = Policy::load(sources);
  options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
  return Runtime::create(std::move(options));
}

ProcessOptions options_of(const Setting& setting) {
  ProcessOptions options;
  options.name = setting.text("name", "cp");
  options.rendezvous = setting.text("rendezvous");
  options.heartbeat_s = setting.number("agreement.heartbeat_s", 2);
  options.timeout_s = setting.number("create_timeout", 50);
  if (setting.is("hosts", "apart")) options.host = "node" + std::string(std::getenv("RANK"));
  options.log_sink = [](PolicyValues::LogLevel, std::string_view line) { say("log " + std::string(line)); };
  return options;
}

/// Every path once; results go to files that the test puts together.
void parity(const Setting& setting, Communicator comm) {
  for (const char* path : kPaths) {
    const Runtime runtime = runtime_of(setting, {{"exchange.path", "\"" + std::string(path) + "\""}});
    const DocLayout layout = parity_layout(comm.size());
    const Step step = runtime.begin_step(layout, kParityShape, comm, {.device = StepOptions::device_host});
    RankRun run(step, kParityShape, GlobalInputs(layout, kParityShape, kParitySeed), comm.rank());
    run.forward(step);
    run.backward(step);
    std::ofstream file(setting.text("out") + "/" + path + "." + std::to_string(comm.rank()), std::ios::binary);
    write_results(file, run);
    say("path " + std::string(to_string(step.decision().path)));
    for (const Downgrade& downgrade : step.decision().downgrades)
      say("downgrade " + downgrade.code + " " + downgrade.from + " to " + downgrade.to);
  }
}

/// A rank's shard where the test wants it: in host memory, or on the device of its rank.
class Shard {
 public:
  Shard(const Step& step, const GlobalInputs& inputs, int rank, std::shared_ptr<device::Device> device)
      : device_(std::move(device)) {
    if (device_) {
      gpu_ = std::make_unique<DeviceRank>(step, kParityShape, inputs, rank, device_);
    } else {
      host_ = std::make_unique<RankRun>(step, kParityShape, inputs, rank);
    }
  }
  void forward(const Step& step) { host_ ? host_->forward(step) : gpu_->forward(step); }
  void backward(const Step& step) { host_ ? host_->backward(step) : gpu_->backward(step); }
  void finish() {
    if (gpu_) gpu_->finish();
  }
  void delay(double seconds) { host_ ? nap(seconds) : gpu_->delay(seconds); }
  /// A call that no step takes.
  void misuse(const Step& step) { step.forward({}, host_ ? Stream::host() : gpu_->stream()); }

 private:
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<RankRun> host_;
  std::unique_ptr<DeviceRank> gpu_;
};

/// The tests' libnccl tells any version.
void pretend_nccl(int version) {
  std::string why;
  const auto library = device::DynamicLibrary::open({"libnccl.so.2"}, std::getenv("BDCP_LIBNCCL"), {}, &why);
  if (!library) throw Error(ErrorCode::library_missing, why);
  reinterpret_cast<void (*)(int)>(library->symbol("fake_nccl_version"))(version);
}

std::shared_ptr<device::Device> device_of(const Setting& setting, int ordinal) {
  if (!setting.is("on", "gpu")) return nullptr;
  if (setting.given.count("nccl")) pretend_nccl(static_cast<int>(setting.number("nccl", 0)));
  std::string why;
  const auto driver = device::Driver::open(Env::from_process(), &why);
  if (!driver) throw Error(ErrorCode::library_missing, why);
  return driver->device(ordinal);
}

void run_out_of_memory(device::Device& device, const Communicator& comm) {
  try {
    (void)device.allocate(std::size_t{1} << 50);
  } catch (const Error& error) {
    comm.abort(error.what());
  }
}

/// Steps of small attention until an error, or `steps` of them; one rank misbehaves where it is told to.
void steps(const Setting& setting, const Communicator& comm, const std::shared_ptr<device::Device>& device) {
  const Runtime runtime = runtime_of(setting);
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{60}, {.world_size = comm.size()});
  const DocLayout other = DocLayout::from_lengths(std::vector<std::int64_t>{59}, {.world_size = comm.size()});
  const GlobalInputs inputs(layout, kParityShape, 1);
  const StepOptions options{.device = device ? device->facts().ordinal : StepOptions::device_host};
  const int odd_step = static_cast<int>(setting.number("odd_step", 2));
  std::vector<std::unique_ptr<Shard>> kept;  // freeing device memory waits for the device
  for (int i = 0; i < setting.number("steps", 1e9); ++i) {
    const bool odd = setting.is("odd", std::to_string(comm.rank())) && i == odd_step;
    const std::string how = odd ? setting.text("how") : "";
    if (how == "late") nap(setting.number("late_s", 1));
    if (how == "die_before") raise(SIGKILL);
    if (how == "stop_before") raise(SIGSTOP);
    if (how == "leave") return say("left");
    if (how == "leave_late") {
      nap(1);
      return say("leaving");
    }
    if (how == "skip_step") {
      nap(60);
      return;
    }
    const Step step = how == "other_layout"   ? runtime.begin_step(other, kParityShape, comm, options)
                      : how == "other_policy" ? runtime_of(setting, {{"exchange.grad_payload", "\"input\""}})
                                                    .begin_step(layout, kParityShape, comm, options)
                                              : runtime.begin_step(layout, kParityShape, comm, options);
    kept.push_back(std::make_unique<Shard>(step, inputs, comm.rank(), device));
    Shard& run = *kept.back();
    if (how == "die_in_step") raise(SIGKILL);
    if (how == "stop_in_step") raise(SIGSTOP);
    if (how == "skip_forward") continue;
    if (how == "sit_out") nap(60);
    if (how == "abort") comm.abort("told to");
    if (how == "out_of_memory") run_out_of_memory(*device, comm);
    if (how == "bad_call") run.misuse(step);
    if (how == "slow") run.delay(setting.number("late_s", 1));
    run.forward(step);
    if (how == "die_after") raise(SIGKILL);
    run.backward(step);
    say("step " + std::to_string(i));
    if (setting.is("sync", "no")) continue;
    run.finish();
    comm.check();
    kept.clear();
  }
}

/// Large transfers without pause, for a death in the middle of one.
void pump(const Setting& setting, const Communicator& comm) {
  const auto bytes = static_cast<std::int64_t>(setting.number("bytes", 4 << 20));
  std::vector<std::byte> own(static_cast<std::size_t>(bytes)),
      all(own.size() * static_cast<std::size_t>(comm.size()));
  const comm::GatherOp op{{own.data(), 1, 1, bytes, bytes, bytes},
                          {all.data(), comm.size(), 1, bytes, bytes, bytes}};
  for (int i = 0;; ++i) {
    comm.group()->all_gather({&op, 1}, {}, {.start_s = 30, .run_s = setting.number("run_s", 30)});
    if (i == 0) say("pumping");
  }
}

/// Rank 1 differs in one thing at a time; the communicator outlives every such step.
void differ(const Setting& setting, const Communicator& comm) {
  const bool odd = comm.rank() == 1;
  const DocLayout layout =
      DocLayout::from_lengths(std::vector<std::int64_t>{20, 10}, {.world_size = comm.size()});
  const auto attempt = [&](const std::string& what, const auto& body) {
    try {
      body();
      say("case " + what + " agreed");
    } catch (const Error& error) {
      say("case " + what + " " + std::string(to_string(error.code())) + " " + error.message());
    }
  };
  const StepOptions on_host{.device = StepOptions::device_host};
  for (const PolicyFieldCase& field : policy_field_cases(setting.text("out"))) {
    if (field.alternative.empty()) continue;
    attempt((field.group ? "policy" : "local") + field.pointer, [&] {
      const Runtime runtime =
          odd ? runtime_of(setting, {{field.name, field.alternative}}) : runtime_of(setting);
      runtime.begin_step(layout, kParityShape, comm, on_host);
    });
  }
  const DocLayout other =
      DocLayout::from_lengths(std::vector<std::int64_t>{10, 20}, {.world_size = comm.size()});
  attempt("layout", [&] { runtime_of(setting).begin_step(odd ? other : layout, kParityShape, comm, on_host); });
  CallShape shape = kParityShape;
  shape.scale = 0.3;
  attempt("shapes[0]",
          [&] { runtime_of(setting).begin_step(layout, odd ? shape : kParityShape, comm, on_host); });
  attempt("library_version", [&] {
    comm::ConsensusInput input;
    input.must_match = {{"library_version", odd ? "0.0.9" : "0.1.0"}};
    comm::agree(*comm.group(), input, comm::deadline_in(30));
  });
  attempt("frame", [&] { comm.group()->all_gather_frames("anything", comm::deadline_in(30)); });
  comm.group()->ledger().record(0, odd ? Direction::backward : Direction::forward, 0);
  attempt("calls", [&] { runtime_of(setting).begin_step(layout, kParityShape, comm, on_host); });
}

void reform(const Setting& setting, const std::shared_ptr<device::Device>& device) {
  ProcessOptions options = options_of(setting);
  options.name = "survivors";
  for (const char c : setting.text("reform")) options.ranks.push_back(c - '0');
  options.rendezvous = setting.text("reform_at");
  const Communicator comm = Communicator::from_launcher(options);
  Setting quiet = setting;
  quiet.given["steps"] = "2";
  quiet.given.erase("odd");
  steps(quiet, comm, device);
  say("reformed as rank " + std::to_string(comm.rank()) + " of " + std::to_string(comm.size()));
}

void run(const Setting& setting) {
  bool failed = false;
  std::shared_ptr<device::Device> device;
  try {
    Communicator comm = Communicator::from_launcher(options_of(setting));
    say("created");
    device = device_of(setting, comm.rank());
    if (setting.is("do", "parity")) parity(setting, comm);
    if (setting.is("do", "steps")) steps(setting, comm, device);
    if (setting.is("do", "pump")) pump(setting, comm);
    if (setting.is("do", "differ")) differ(setting, comm);
    say("end");
  } catch (const Error& error) {
    failed = true;
    say_error(error);
  }
  if (failed && setting.given.count("reform")) reform(setting, device);
}

}  // namespace
}  // namespace bdcp::test

int main(int argc, char** argv) {
  bdcp::test::Setting setting;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    setting.given[argument.substr(0, equals)] = equals == std::string::npos ? "" : argument.substr(equals + 1);
  }
  try {
    bdcp::test::run(setting);
  } catch (const std::exception& error) {
    std::printf("exception %s\n", error.what());
    return 1;
  }
  return 0;
}
