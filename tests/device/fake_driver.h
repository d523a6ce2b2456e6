// The driver over the tests' fake libcuda, whose calls are counted.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "bdcp/error.h"
#include "device/device.h"
#include "device/dynamic_library.h"

namespace bdcp::device {

class FakeDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    library_ = DynamicLibrary::open({"libcuda.so.1"}, BDCP_FAKE_LIBCUDA, {}, &why);
    ASSERT_TRUE(library_) << why;
    ASSERT_NE(library_->symbol("fake_reset"), nullptr) << "a real driver is loaded: " << library_->path();
    call<void()>("fake_reset")();
  }
  template <class F>
  F* call(const char* name) {
    return reinterpret_cast<F*>(library_->symbol(name));
  }
  void fail(const char* function, int result) { call<void(const char*, int)>("fake_fail")(function, result); }
  void hide(const char* function) { call<void(const char*)>("fake_hide")(function); }
  int calls(const char* function) { return call<int(const char*)>("fake_calls")(function); }
  int number(const char* name) { return call<int()>(name)(); }
  std::shared_ptr<const Driver> open(std::string* why) {
    return Driver::open(Env::from_pairs({{"BDCP_LIBCUDA", BDCP_FAKE_LIBCUDA}}), why);
  }
  std::shared_ptr<Device> device(int ordinal = 0) {
    std::string why;
    auto driver = open(&why);
    EXPECT_TRUE(driver) << why;
    return driver->device(ordinal);
  }
  template <class Body>
  Error error_of(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::internal, "no error");
  }
  std::shared_ptr<const DynamicLibrary> library_;
};

}  // namespace bdcp::device
