// The CUDA driver behind a small interface. No CUDA header is visible to includers; handles are opaque
// pointers. No call changes the calling thread's current context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/handle.h"
#include "bdcp/types.h"

namespace bdcp::device {

struct DeviceFacts {
  int ordinal = -1;
  std::string name;
  std::string uuid;  ///< hexadecimal, of the GPU or its MIG instance; empty where the driver gives none
  int cc_major = 0, cc_minor = 0;
  std::string arch;  ///< for NVRTC: "sm_90a" on 9.0, else "sm_XY"
  int sm_count = 0;
  std::size_t smem_per_block = 0;  ///< opt-in maximum
  std::size_t l2_bytes = 0, total_memory = 0;
  int driver_version = 0;  ///< as cuDriverGetVersion gives it
};

class Device;
struct DriverTable;  // function pointers; driver_table.h, private to device/

/// libcuda, opened and initialised. Thread safe.
class Driver : public std::enable_shared_from_this<Driver> {
 public:
  /// Null with `why` filled where there is no driver or no device.
  static std::shared_ptr<const Driver> open(const Env& env, std::string* why);
  ~Driver();
  int device_count() const;
  /// Retains the primary context of the device for as long as the result lives; the same object on every call.
  std::shared_ptr<Device> device(int ordinal) const;
  const DriverTable& table() const { return *table_; }

 private:
  explicit Driver(std::unique_ptr<DriverTable> table);
  std::unique_ptr<DriverTable> table_;
  struct Devices;
  std::unique_ptr<Devices> devices_;
};

/// While it lives, the thread may ask the driver for what is refused, and would end captures, while any thread
/// captures a stream: memory, and events from outside the capture.
class RelaxedCaptures {
 public:
  explicit RelaxedCaptures(const Driver& driver) noexcept;
  ~RelaxedCaptures();
  RelaxedCaptures(const RelaxedCaptures&) = delete;
  RelaxedCaptures& operator=(const RelaxedCaptures&) = delete;

 private:
  void exchange() noexcept;
  const Driver& driver_;
  int mode_;  // which the thread does not have now
};

/// Device memory, stream or event of one Device (kept alive by it). Null when default constructed. Move-only.
struct BufferTraits {
  using type = void*;
  static constexpr type null = nullptr;
  std::shared_ptr<Device> device;
  void destroy(type value) noexcept;
};
struct StreamTraits {
  using type = void*;
  static constexpr type null = nullptr;
  std::shared_ptr<Device> device;
  void destroy(type value) noexcept;
};
struct EventTraits {
  using type = void*;
  static constexpr type null = nullptr;
  std::shared_ptr<Device> device;
  void destroy(type value) noexcept;
};
struct PinnedTraits {
  using type = void*;
  static constexpr type null = nullptr;
  std::shared_ptr<Device> device;
  void destroy(type value) noexcept;
};
using Buffer = Handle<BufferTraits>;
using PinnedBuffer = Handle<PinnedTraits>;  ///< host memory that the device copies from without staging
using OwnedStream = Handle<StreamTraits>;
using OwnedEvent = Handle<EventTraits>;

/// A kernel loaded from a cubin, usable on the device it was loaded for.
class LoadedKernel {
 public:
  LoadedKernel(std::shared_ptr<Device> device, void* library, void* function, int registers, int local_bytes,
               int static_smem);
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;
  void* function() const { return function_; }
  int registers() const { return registers_; }
  int local_bytes() const { return local_bytes_; }
  int static_smem() const { return static_smem_; }

 private:
  std::shared_ptr<Device> device_;
  void* library_;
  void* function_;
  int registers_, local_bytes_, static_smem_;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// What cuTensorMapEncodeTiled is told of a 16-bit tensor with 128-byte swizzle and zeros outside its bounds.
/// Dimensions innermost first; strides in bytes, of dimensions 1 to rank - 1.
struct TensorMapSpec {
  const void* base = nullptr;
  bool bf16 = true;  ///< else f16
  unsigned rank = 0;
  std::array<std::uint64_t, 5> dims{};
  std::array<std::uint64_t, 4> strides{};
  std::array<std::uint32_t, 5> box{};
};

/// One CUDA device. All methods are thread safe; failures throw Error(cuda_error, out_of_memory or device_lost)
/// naming the driver call. `stream` arguments are CUstream values (null: the legacy default stream).
class Device : public std::enable_shared_from_this<Device> {
 public:
  Device(std::shared_ptr<const Driver> driver, int ordinal);
  ~Device();
  const DeviceFacts& facts() const { return facts_; }

  Buffer allocate(std::size_t bytes);
  PinnedBuffer allocate_pinned(std::size_t bytes);
  OwnedStream create_stream(bool high_priority = false);
  OwnedEvent create_event(bool timing = false);
  void record(void* event, void* stream);
  void wait(void* stream, void* event);
  /// False while work before the event is unfinished. Disturbs no capture.
  bool done(void* event);
  /// Unique over the life of the process, while handles of destroyed streams come back.
  std::uint64_t stream_id(void* stream);
  bool capturing(void* stream);
  void synchronize(void* stream);
  void synchronize_event(void* event);
  double elapsed_ms(void* start, void* end);

  /// Any of host and device memory (unified addressing); host memory should be pinned for true asynchrony.
  void copy_async(void* dst, const void* src, std::size_t bytes, void* stream);
  void copy_2d_async(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch,
                     std::size_t width, std::size_t rows, void* stream);
  void fill_async(void* dst, unsigned char value, std::size_t bytes, void* stream);
  /// Synchronous conveniences for set-up and tests.
  void upload(void* dst, const void* src, std::size_t bytes);
  void download(void* dst, const void* src, std::size_t bytes);

  /// Loads `cubin` and finds the extern "C" kernel; dynamic_smem above the default limit is opted into here.
  std::shared_ptr<const LoadedKernel> load(const void* cubin, std::size_t bytes, const std::string& kernel,
                                           int dynamic_smem);
  /// args: one pointer per kernel parameter. `early`: the kernel itself waits for the one before it on the
  /// stream (griddepcontrol.wait, first of all in every thread), so that its launch may overlap with that one's
  /// end.
  void launch(const LoadedKernel& kernel, Dim3 grid, Dim3 block, unsigned dynamic_smem, void* stream,
              void** args, bool early = false);
  /// Writes a CUtensorMap (128 bytes, aligned to 64) to `map`. No device work.
  void encode_tensor_map(const TensorMapSpec& spec, void* map) const;
  /// Raises the dynamic shared memory limit of a loaded kernel.
  void allow_smem(const LoadedKernel& kernel, int dynamic_smem);

  /// Runs `body` with the device's context current, for libraries that ask the thread for its device. The
  /// thread's own is back afterwards, whatever they did to it.
  void in_context(const std::function<void()>& body);
  /// For a thread that polls events: it does not disturb captures that other threads are in.
  static void ignore_captures(const Driver& driver) noexcept;

  const Driver& driver() const { return *driver_; }
  void* context() const { return context_; }

 private:
  std::shared_ptr<const Driver> driver_;
  void* context_ = nullptr;
  DeviceFacts facts_;
};

/// The device's context is the thread's own for the life of this object, so that several calls need not each
/// make it so; the one before is back afterwards.
class CurrentContext {
 public:
  explicit CurrentContext(const Device& device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace bdcp::device
