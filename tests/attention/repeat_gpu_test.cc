// The same bits from every one of 200 calls, while other streams keep the device busy
// (Dao-AILab/flash-attention#1678: semaphores that are not reset; #1596, #1766: the deterministic flag is
// lost).
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "attention/step_caller.h"

namespace bdcp::test {
namespace {

constexpr int kRepeats = 200, kCallers = 2, kLoads = 2;

class RepeatGpu : public StepGpu {
 protected:
  void repeat(bool deterministic) {
    const Runtime runtime = this->runtime(deterministic);
    Case load;
    load.layout = from_lengths(std::vector<std::int64_t>{1500, 40, 500}, 0, "load");
    load.shape = make_shape(8, 2, 64, DType::bf16);
    const Step load_step = begin(runtime, load);
    const Data load_data = make_data(load);

    const std::vector<std::int64_t> lengths{300, 77, 1, 200, 20, 30, 0, 513}, all_short{128, 77, 1, 20, 0, 65};
    const std::pair<CallShape, std::vector<std::int64_t>> cases[] = {
        {make_shape(8, 2, 64, DType::bf16), lengths},
        {make_shape(3, 1, 128, DType::f16), lengths},
        {make_shape(8, 2, 128, DType::bf16), all_short}};  // which may have kernels of their own
    for (const auto& [shape, documents] : cases) {
      Case c;
      c.layout = from_lengths(documents, 3, "repeat");
      c.shape = shape;
      SCOPED_TRACE(describe(c));
      const Step step = begin(runtime, c);
      const BackendKind backend = step.decision().backend;
      if (!deterministic) {
        ASSERT_EQ(backend, GetParam());
      }
      const bool with_dq = deterministic || backend == BackendKind::reference;
      const Data data = make_data(c);
      const Outputs first = Caller(device_, step, c, data).fresh(step);
      expect_oracle(c, data, first);

      std::atomic<bool> stop{false};
      std::atomic<int> calls{0}, different{0};
      std::mutex mutex;
      std::string failure;
      const auto guarded = [&](const std::function<void()>& body) {
        try {
          body();
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          failure = error.what();
        }
      };
      std::vector<std::thread> callers, loads;
      for (int i = 0; i < kLoads; ++i)
        loads.emplace_back([&] {
          guarded([&] {
            Caller caller(device_, load_step, load, load_data);
            while (!stop) {
              for (int n = 0; n < 4; ++n) caller.call(load_step, true);
              caller.wait();
            }
          });
        });
      for (int i = 0; i < kCallers; ++i)
        callers.emplace_back([&] {
          guarded([&] {
            Caller caller(device_, step, c, data);
            while (calls++ < kRepeats) {
              const Outputs& again = caller.fresh(step);
              const bool same = again.out.same_bits(first.out) &&
                                same_bits(again.lse, first.lse, 0, c.layout.rows()) &&
                                again.dk.same_bits(first.dk) && again.dv.same_bits(first.dv) &&
                                (!with_dq || again.dq.same_bits(first.dq));
              if (!same) ++different;
            }
          });
        });
      for (std::thread& thread : callers) thread.join();
      stop = true;
      for (std::thread& thread : loads) thread.join();
      EXPECT_EQ(failure, "");
      EXPECT_EQ(different.load(), 0) << "calls of " << kRepeats << " with other bits, dQ "
                                     << (with_dq ? "compared" : "not compared");
    }
  }
};

TEST_P(RepeatGpu, SameBitsUnderLoad) { repeat(false); }
// A backend without deterministic dQ is replaced by one that has it.
TEST_P(RepeatGpu, SameBitsUnderLoadDeterministic) { repeat(true); }

INSTANTIATE_TEST_SUITE_P(Cuda, RepeatGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
