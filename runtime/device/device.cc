#include "device/device.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "bdcp/error.h"
#include "device/driver_table.h"

namespace bdcp::device {
namespace {

CUstream stream_of(void* stream) { return static_cast<CUstream>(stream); }
CUevent event_of(void* event) { return static_cast<CUevent>(event); }
CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
std::string nothing() { return {}; }

std::string uuid_of(const DriverTable& table, CUdevice device) {
  CUuuid uuid{};
  if (!table.cuDeviceGetUuid_.pointer || table.try_call(table.cuDeviceGetUuid_, &uuid, device) != CUDA_SUCCESS)
    return {};
  std::string text;
  for (const char byte : uuid.bytes) {
    if (text.size() == 8 || text.size() == 13 || text.size() == 18 || text.size() == 23) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

DeviceFacts query(const DriverTable& table, int ordinal) {
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.driver_version = table.version;
  auto values = [&] { return fmt::format("device {}", ordinal); };
  CUdevice device = 0;
  table.call(table.cuDeviceGet_, values, &device, ordinal);
  char name[256] = {};
  table.call(table.cuDeviceGetName_, values, name, static_cast<int>(sizeof(name) - 1), device);
  facts.name = name;
  facts.uuid = uuid_of(table, device);
  auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    table.call(
        table.cuDeviceGetAttribute_,
        [&] { return fmt::format("device {}, attribute {}", ordinal, static_cast<int>(which)); }, &value, which,
        device);
    return value;
  };
  facts.cc_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  facts.cc_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  // Only Hopper's kernels need the architecture-specific instructions (wgmma).
  facts.arch = fmt::format("sm_{}{}{}", facts.cc_major, facts.cc_minor,
                           facts.cc_major == 9 && facts.cc_minor == 0 ? "a" : "");
  facts.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  facts.smem_per_block =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  facts.l2_bytes = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  table.call(table.cuDeviceTotalMem_, values, &facts.total_memory, device);
  return facts;
}

}  // namespace

Device::Device(std::shared_ptr<const Driver> driver, int ordinal) : driver_(std::move(driver)) {
  const DriverTable& table = driver_->table();
  facts_ = query(table, ordinal);
  CUcontext context = nullptr;
  table.call(
      table.cuDevicePrimaryCtxRetain_, [&] { return fmt::format("device {}", ordinal); }, &context,
      static_cast<CUdevice>(ordinal));
  context_ = context;
}

Device::~Device() {
  const DriverTable& table = driver_->table();
  table.quiet(table.cuDevicePrimaryCtxRelease_, static_cast<CUdevice>(facts_.ordinal));
}

Buffer Device::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  CUdeviceptr pointer = 0;
  table.call(
      table.cuMemAlloc_,
      [&] {
        return fmt::format("{} bytes on device {} ({} bytes in all)", bytes, facts_.ordinal,
                           facts_.total_memory);
      },
      &pointer, bytes);
  return Buffer(reinterpret_cast<void*>(pointer), BufferTraits{shared_from_this()});
}

PinnedBuffer Device::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return {};
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  void* pointer = nullptr;
  table.call(
      table.cuMemHostAlloc_, [&] { return fmt::format("{} bytes of pinned host memory", bytes); }, &pointer,
      bytes, 0u);
  return PinnedBuffer(pointer, PinnedTraits{shared_from_this()});
}

OwnedStream Device::create_stream(bool high_priority) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  int least = 0, greatest = 0;
  table.call(table.cuCtxGetStreamPriorityRange_, nothing, &least, &greatest);
  CUstream stream = nullptr;
  table.call(table.cuStreamCreateWithPriority_, nothing, &stream, static_cast<unsigned>(CU_STREAM_NON_BLOCKING),
             high_priority ? greatest : least);
  return OwnedStream(stream, StreamTraits{shared_from_this()});
}

OwnedEvent Device::create_event(bool timing) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  CUevent event = nullptr;
  table.call(table.cuEventCreate_, nothing, &event,
             static_cast<unsigned>(timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
  return OwnedEvent(event, EventTraits{shared_from_this()});
}

// Not ContextScope: a destructor must not throw.
void BufferTraits::destroy(type value) noexcept {
  const DriverTable& table = device->driver().table();
  table.quiet_in(device->context(), table.cuMemFree_, address_of(value));
}
void PinnedTraits::destroy(type value) noexcept {
  const DriverTable& table = device->driver().table();
  table.quiet_in(device->context(), table.cuMemFreeHost_, value);
}
void StreamTraits::destroy(type value) noexcept {
  const DriverTable& table = device->driver().table();
  table.quiet_in(device->context(), table.cuStreamDestroy_, stream_of(value));
}
void EventTraits::destroy(type value) noexcept {
  const DriverTable& table = device->driver().table();
  table.quiet_in(device->context(), table.cuEventDestroy_, event_of(value));
}

void Device::record(void* event, void* stream) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(table.cuEventRecord_, nothing, event_of(event), stream_of(stream));
}

void Device::wait(void* stream, void* event) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(table.cuStreamWaitEvent_, nothing, stream_of(stream), event_of(event), 0u);
}

bool Device::done(void* event) {
  const DriverTable& table = driver_->table();
  const RelaxedCaptures relaxed(*driver_);
  ContextScope scope(table, context_);
  const CUresult result = table.try_call(table.cuEventQuery_, event_of(event));
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) table.fail(result, "cuEventQuery", "");
  return true;
}

std::uint64_t Device::stream_id(void* stream) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  unsigned long long id = 0;
  table.call(table.cuStreamGetId_, nothing, stream_of(stream), &id);
  return id;
}

bool Device::capturing(void* stream) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  table.call(table.cuStreamIsCapturing_, nothing, stream_of(stream), &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Device::synchronize(void* stream) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(table.cuStreamSynchronize_, nothing, stream_of(stream));
}

void Device::synchronize_event(void* event) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(table.cuEventSynchronize_, nothing, event_of(event));
}

double Device::elapsed_ms(void* start, void* end) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  float ms = 0;
  table.call(table.cuEventElapsedTime_, nothing, &ms, event_of(start), event_of(end));
  return ms;
}

void Device::copy_async(void* dst, const void* src, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(
      table.cuMemcpyAsync_, [&] { return fmt::format("{} <- {}, {} bytes", dst, src, bytes); }, address_of(dst),
      address_of(src), bytes, stream_of(stream));
}

void Device::copy_2d_async(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                           std::size_t width, std::size_t rows, void* stream) {
  if (width == 0 || rows == 0) return;
  if (rows == 1 || (dst_pitch == width && src_pitch == width))
    return copy_async(dst, src, width * rows, stream);
  auto values = [&] {
    return fmt::format("{} (pitch {}) <- {} (pitch {}), {} rows of {} bytes", dst, dst_pitch, src, src_pitch,
                       rows, width);
  };
  require(width <= dst_pitch && width <= src_pitch, ErrorCode::invalid_argument,
          [&] { return "copy_2d_async: a row is wider than its pitch: " + values(); });
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = address_of(src);
  copy.dstDevice = address_of(dst);
  copy.srcPitch = src_pitch;
  copy.dstPitch = dst_pitch;
  copy.WidthInBytes = width;
  copy.Height = rows;
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(table.cuMemcpy2DAsync_, values, &copy, stream_of(stream));
}

void Device::fill_async(void* dst, unsigned char value, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(
      table.cuMemsetD8Async_, [&] { return fmt::format("{}, {} bytes", dst, bytes); }, address_of(dst), value,
      bytes, stream_of(stream));
}

void Device::in_context(const std::function<void()>& body) {
  // Pushed even where it is current: what such a library sets is then popped.
  const DriverTable& table = driver_->table();
  table.call(
      table.cuCtxPushCurrent_, [] { return std::string("the device's primary context"); },
      static_cast<CUcontext>(context_));
  struct Pop {
    const DriverTable& table;
    ~Pop() {
      CUcontext popped = nullptr;
      table.quiet(table.cuCtxPopCurrent_, &popped);
    }
  } const pop{table};
  body();
}

CurrentContext::CurrentContext(const Device& device)
    : driver_(device.driver()), pushed_(ContextScope::enter(driver_.table(), device.context())) {}
CurrentContext::~CurrentContext() {
  if (pushed_) ContextScope::leave(driver_.table());
}

RelaxedCaptures::RelaxedCaptures(const Driver& driver) noexcept
    : driver_(driver), mode_(CU_STREAM_CAPTURE_MODE_RELAXED) {
  exchange();
}
RelaxedCaptures::~RelaxedCaptures() { exchange(); }
void RelaxedCaptures::exchange() noexcept {
  auto mode = static_cast<CUstreamCaptureMode>(mode_);
  driver_.table().quiet(driver_.table().cuThreadExchangeStreamCaptureMode_, &mode);
  mode_ = mode;
}

void Device::ignore_captures(const Driver& driver) noexcept {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.table().quiet(driver.table().cuThreadExchangeStreamCaptureMode_, &mode);
}

// cuMemcpyHtoD may return before pageable memory has arrived, and other streams would not wait for it.
void Device::upload(void* dst, const void* src, std::size_t bytes) {
  copy_async(dst, src, bytes, nullptr);
  synchronize(nullptr);
}
void Device::download(void* dst, const void* src, std::size_t bytes) {
  copy_async(dst, src, bytes, nullptr);
  synchronize(nullptr);
}

}  // namespace bdcp::device
