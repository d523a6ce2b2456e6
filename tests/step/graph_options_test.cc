// What asks for graphs where there are none, on the host.
#include <gtest/gtest.h>

#include <vector>

#include "step/world.h"
#include "support/expect_error.h"

namespace bdcp::test {
namespace {

const DocLayout kLayout = DocLayout::from_lengths(std::vector<std::int64_t>{20, 12});
CallShape shape_of_one_head() {
  CallShape shape;
  shape.heads_q = shape.heads_kv = 1;
  shape.head_dim = 16;
  return shape;
}

TEST(GraphOptions, TheHostHasNoGraphs) {
  const Runtime runtime = quiet_runtime("{}");
  StepOptions options{.device = StepOptions::device_host, .graph_documents = 4};
  const auto begin = [&] { return runtime.begin_step(kLayout, shape_of_one_head(), {}, options); };
  expect_error(ErrorCode::unsupported, {"graph_documents", "host"}, begin);
  options.graph_documents = 0;
  const Step plain = begin();
  EXPECT_FALSE(plain.recapture());
  expect_error(ErrorCode::invalid_argument, {"refill", "graph_documents"},
               [&] { plain.refill(Stream::host()); });
  options.reuse = plain;
  expect_error(ErrorCode::unsupported, {"options.reuse", "host"}, begin);
}

TEST(GraphOptions, AnExchangeIsNotCaptured) {
  const Runtime runtime = quiet_runtime("{}");
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{20, 12}, {.world_size = 2});
  const auto errors = on_ranks(2, [&](int, const Communicator& comm) {
    runtime.begin_step(layout, shape_of_one_head(), comm,
                       {.device = StepOptions::device_host, .graph_documents = 4});
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("graph_documents"), std::string::npos) << error;
    EXPECT_NE(error.find("world size 1"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace bdcp::test
