// Loading cubins and launching their kernels.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/handle.h"
#include "bdcp/error.h"
#include "device/device.h"
#include "device/driver_table.h"

namespace bdcp::device {
namespace {

struct LibraryTraits {
  using type = CUlibrary;
  static constexpr type null = nullptr;
  const DriverTable* table = nullptr;
  void destroy(type value) noexcept { table->quiet(table->cuLibraryUnload_, value); }
};

// A block gets this much dynamic shared memory without opting in, on every architecture.
constexpr int kDefaultDynamicSmem = 48 * 1024;

}  // namespace

LoadedKernel::LoadedKernel(std::shared_ptr<Device> device, void* library, void* function, int registers,
                           int local_bytes, int static_smem)
    : device_(std::move(device)),
      library_(library),
      function_(function),
      registers_(registers),
      local_bytes_(local_bytes),
      static_smem_(static_smem) {}

LoadedKernel::~LoadedKernel() {
  const DriverTable& table = device_->driver().table();
  table.quiet(table.cuLibraryUnload_, static_cast<CUlibrary>(library_));
}

std::shared_ptr<const LoadedKernel> Device::load(const void* cubin, std::size_t bytes,
                                                 const std::string& kernel, int dynamic_smem) {
  const DriverTable& table = driver_->table();
  auto values = [&] {
    return fmt::format("kernel {}, {} bytes of cubin, device {} ({}), driver {}", kernel, bytes, facts_.ordinal,
                       facts_.arch, table.version);
  };
  ContextScope scope(table, context_);
  CUlibrary raw = nullptr;
  table.call(table.cuLibraryLoadData_, values, &raw, cubin, nullptr, nullptr, 0u, nullptr, nullptr, 0u);
  Handle<LibraryTraits> library(raw, LibraryTraits{&table});
  CUkernel handle = nullptr;
  table.call(table.cuLibraryGetKernel_, values, &handle, raw, kernel.c_str());
  CUfunction function = nullptr;  // bound to the context pushed above, which the result keeps alive
  table.call(table.cuKernelGetFunction_, values, &function, handle);
  // Lazy loading would put the upload into the first launch, where stream capture may forbid it.
  if (table.cuFuncLoad_.pointer) table.call(table.cuFuncLoad_, values, function);
  auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    table.call(table.cuFuncGetAttribute_, values, &value, which, function);
    return value;
  };
  const int registers = attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
  const int local_bytes = attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  const int static_smem = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  auto loaded = std::make_shared<const LoadedKernel>(shared_from_this(), library.release(), function, registers,
                                                     local_bytes, static_smem);
  allow_smem(*loaded, dynamic_smem);
  return loaded;
}

void Device::allow_smem(const LoadedKernel& kernel, int dynamic_smem) {
  if (dynamic_smem + kernel.static_smem() <= kDefaultDynamicSmem) return;
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(
      table.cuFuncSetAttribute_,
      [&] {
        return fmt::format(
            "{} bytes of dynamic shared memory; device {} allows {} in all, the kernel has {} static",
            dynamic_smem, facts_.ordinal, facts_.smem_per_block, kernel.static_smem());
      },
      static_cast<CUfunction>(kernel.function()), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
      dynamic_smem);
}

namespace {

std::string describe(const LoadedKernel& kernel, Dim3 grid, Dim3 block, unsigned dynamic_smem) {
  return fmt::format("grid ({}, {}, {}), block ({}, {}, {}), {} bytes of dynamic shared memory, {} registers",
                     grid.x, grid.y, grid.z, block.x, block.y, block.z, dynamic_smem, kernel.registers());
}

}  // namespace

void Device::launch(const LoadedKernel& kernel, Dim3 grid, Dim3 block, unsigned dynamic_smem, void* stream,
                    void** args, bool early) {
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  const auto function = static_cast<CUfunction>(kernel.function());
  const auto values = [&] { return describe(kernel, grid, block, dynamic_smem); };
  constexpr int kFirstDriver = 12030;  // from here on also inside captured graphs
  if (!early || facts_.cc_major < 9 || table.version < kFirstDriver || !table.cuLaunchKernelEx_.pointer)
    return table.call(table.cuLaunchKernel_, values, function, grid.x, grid.y, grid.z, block.x, block.y,
                      block.z, dynamic_smem, static_cast<CUstream>(stream), args, nullptr);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = block.x;
  config.blockDimY = block.y;
  config.blockDimZ = block.z;
  config.sharedMemBytes = dynamic_smem;
  config.hStream = static_cast<CUstream>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  table.call(table.cuLaunchKernelEx_, values, &config, function, args, nullptr);
}

void Device::encode_tensor_map(const TensorMapSpec& spec, void* map) const {
  constexpr std::array<cuuint32_t, 5> kSteps{1, 1, 1, 1, 1};
  std::array<cuuint64_t, 5> dims{};
  std::array<cuuint64_t, 4> strides{};
  std::array<cuuint32_t, 5> box{};
  std::copy(spec.dims.begin(), spec.dims.end(), dims.begin());
  std::copy(spec.strides.begin(), spec.strides.end(), strides.begin());
  std::copy(spec.box.begin(), spec.box.end(), box.begin());
  const DriverTable& table = driver_->table();
  ContextScope scope(table, context_);
  table.call(
      table.cuTensorMapEncodeTiled_,
      [&] {
        return fmt::format("base {}, dims {}, strides {}, box {}", spec.base,
                           fmt::join(spec.dims.begin(), spec.dims.begin() + spec.rank, " "),
                           fmt::join(spec.strides.begin(), spec.strides.begin() + spec.rank - 1, " "),
                           fmt::join(spec.box.begin(), spec.box.begin() + spec.rank, " "));
      },
      static_cast<CUtensorMap*>(map),
      spec.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, spec.rank,
      const_cast<void*>(spec.base), dims.data(), strides.data(), box.data(), kSteps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace bdcp::device
