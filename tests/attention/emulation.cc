#include "attention/emulation.h"

#include <ucontext.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace bdcp::test::emulation {
namespace {

constexpr std::size_t kStack = 64 * 1024;

struct Cta {
  std::vector<ucontext_t> fibers;
  std::vector<std::unique_ptr<char[]>> stacks;
  std::vector<int> kinds;  // what each fiber waits for; 0: ended
  std::vector<float> slots[2];
  std::vector<int> parity;
  ucontext_t scheduler;
  unsigned current = 0;
  void (*body)(const void*) = nullptr;
  const void* args = nullptr;
};
Cta cta;
Index thread_, block_;

void enter() {
  cta.body(cta.args);
  cta.kinds[cta.current] = 0;
}

}  // namespace

Index& thread_index() { return thread_; }
Index& block_index() { return block_; }

void synchronize(int kind) {
  const unsigned self = cta.current;
  cta.kinds[self] = kind;
  swapcontext(&cta.fibers[self], &cta.scheduler);
}

float shuffle(float value, unsigned lane) {
  const unsigned self = cta.current;
  std::vector<float>& slots = cta.slots[cta.parity[self] ^= 1];  // the other one may still be read
  slots[self] = value;
  synchronize(2);
  return slots[(self & ~31u) | lane];
}

void run_block(unsigned block, unsigned threads, void (*body)(const void*), const void* args) {
  cta.fibers.resize(threads);
  cta.kinds.assign(threads, -1);
  cta.parity.assign(threads, 0);
  for (auto& slots : cta.slots) slots.assign(threads, 0.0f);
  while (cta.stacks.size() < threads) cta.stacks.emplace_back(new char[kStack]);
  cta.body = body;
  cta.args = args;
  block_.x = block;
  for (unsigned t = 0; t < threads; ++t) {
    getcontext(&cta.fibers[t]);
    cta.fibers[t].uc_stack.ss_sp = cta.stacks[t].get();
    cta.fibers[t].uc_stack.ss_size = kStack;
    cta.fibers[t].uc_link = &cta.scheduler;
    makecontext(&cta.fibers[t], enter, 0);
  }
  do {
    for (unsigned t = 0; t < threads; ++t) {
      cta.current = t;
      thread_.x = t;
      swapcontext(&cta.scheduler, &cta.fibers[t]);
    }
    for (unsigned t = 1; t < threads; ++t)
      if (cta.kinds[t] != cta.kinds[0])
        throw std::runtime_error("threads of a CTA reached different synchronisations");
  } while (cta.kinds[0] != 0);
}

}  // namespace bdcp::test::emulation
