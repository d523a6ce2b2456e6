#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "bdcp/error.h"
#include "device/device.h"
#include "device/driver_table.h"

namespace bdcp::device {

struct Driver::Devices {
  int count = 0;
  std::mutex mutex;
  std::map<int, std::weak_ptr<Device>> live;  // weak: a Device holds its Driver
};

Driver::Driver(std::unique_ptr<DriverTable> table)
    : table_(std::move(table)), devices_(std::make_unique<Devices>()) {}
Driver::~Driver() = default;

std::shared_ptr<const Driver> Driver::open(const Env& env, std::string* why) {
  std::unique_ptr<DriverTable> table = DriverTable::open(env, why);
  if (!table) return nullptr;
  int count = 0;
  const CUresult result =
      table->cuDeviceGetCount_.pointer ? table->cuDeviceGetCount_.pointer(&count) : CUDA_ERROR_NOT_FOUND;
  if (result != CUDA_SUCCESS || count == 0) {
    if (why)
      *why = result != CUDA_SUCCESS ? "cuDeviceGetCount failed: " + table->describe(result)
                                    : "the CUDA driver reports no device (is CUDA_VISIBLE_DEVICES empty?)";
    return nullptr;
  }
  std::shared_ptr<Driver> driver(new Driver(std::move(table)));
  driver->devices_->count = count;
  return driver;
}

int Driver::device_count() const { return devices_->count; }

std::shared_ptr<Device> Driver::device(int ordinal) const {
  if (ordinal < 0 || ordinal >= devices_->count)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device {}: this process sees devices 0..{}", ordinal, devices_->count - 1));
  std::lock_guard lock(devices_->mutex);
  std::weak_ptr<Device>& slot = devices_->live[ordinal];
  if (auto device = slot.lock()) return device;
  auto device = std::make_shared<Device>(shared_from_this(), ordinal);
  slot = device;
  return device;
}

}  // namespace bdcp::device
