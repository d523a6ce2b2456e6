// The device interface of a build without CUDA headers: there is never a driver, so no Device can exist.
#include "bdcp/error.h"
#include "device/device.h"

namespace bdcp::device {
namespace {
constexpr const char* kReason = "built without CUDA headers";
[[noreturn]] void refuse() { throw Error(ErrorCode::library_missing, kReason, ErrorScope::process); }
}  // namespace

struct DriverTable {};
struct Driver::Devices {};

Driver::Driver(std::unique_ptr<DriverTable> table) : table_(std::move(table)) {}
Driver::~Driver() = default;
std::shared_ptr<const Driver> Driver::open(const Env&, std::string* why) {
  if (why) *why = kReason;
  return nullptr;
}
int Driver::device_count() const { return 0; }
std::shared_ptr<Device> Driver::device(int) const { refuse(); }

RelaxedCaptures::RelaxedCaptures(const Driver& driver) noexcept : driver_(driver), mode_(0) { exchange(); }
RelaxedCaptures::~RelaxedCaptures() = default;
void RelaxedCaptures::exchange() noexcept {
  (void)driver_;
  (void)mode_;
}

void BufferTraits::destroy(type) noexcept {}
void PinnedTraits::destroy(type) noexcept {}
void StreamTraits::destroy(type) noexcept {}
void EventTraits::destroy(type) noexcept {}

LoadedKernel::LoadedKernel(std::shared_ptr<Device> device, void* library, void* function, int registers,
                           int local_bytes, int static_smem)
    : device_(std::move(device)),
      library_(library),
      function_(function),
      registers_(registers),
      local_bytes_(local_bytes),
      static_smem_(static_smem) {
  (void)library_;
}
LoadedKernel::~LoadedKernel() = default;

Device::Device(std::shared_ptr<const Driver>, int) { refuse(); }
Device::~Device() = default;
Buffer Device::allocate(std::size_t) { refuse(); }
PinnedBuffer Device::allocate_pinned(std::size_t) { refuse(); }
OwnedStream Device::create_stream(bool) { refuse(); }
OwnedEvent Device::create_event(bool) { refuse(); }
void Device::in_context(const std::function<void()>&) { refuse(); }
void Device::ignore_captures(const Driver&) noexcept {}
void Device::record(void*, void*) { refuse(); }
void Device::wait(void*, void*) { refuse(); }
bool Device::done(void*) { refuse(); }
std::uint64_t Device::stream_id(void*) { refuse(); }
bool Device::capturing(void*) { refuse(); }
void Device::synchronize(void*) { refuse(); }
void Device::synchronize_event(void*) { refuse(); }
double Device::elapsed_ms(void*, void*) { refuse(); }
void Device::copy_async(void*, const void*, std::size_t, void*) { refuse(); }
void Device::copy_2d_async(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, void*) {
  refuse();
}
void Device::fill_async(void*, unsigned char, std::size_t, void*) { refuse(); }
void Device::upload(void*, const void*, std::size_t) { refuse(); }
void Device::download(void*, const void*, std::size_t) { refuse(); }
std::shared_ptr<const LoadedKernel> Device::load(const void*, std::size_t, const std::string&, int) {
  refuse();
}
void Device::encode_tensor_map(const TensorMapSpec&, void*) const { refuse(); }
void Device::launch(const LoadedKernel&, Dim3, Dim3, unsigned, void*, void**, bool) { refuse(); }
void Device::allow_smem(const LoadedKernel&, int) { refuse(); }

}  // namespace bdcp::device
