#include "device/fork_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bdcp::device {
namespace {

TEST(ForkGuard, OnlyTheChildIsForked) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.forked());
  EXPECT_EQ(guard.owner(), getpid());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ForkGuard own;  // one made in the child is the child's
    _exit(guard.forked() && !own.forked() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(guard.forked());
}

}  // namespace
}  // namespace bdcp::device
