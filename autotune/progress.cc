#include "autotune/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace bdcp::autotune {
namespace {
constexpr std::size_t kBarWidth = 30, kLabelWidth = 48;
constexpr const char* kClearLine = "\r\033[K";
}  // namespace

Progress::Progress(std::FILE* stream, bool bar, std::size_t total) : stream_(stream), bar_(bar), total_(total) {
  std::lock_guard lock(mutex_);
  if (bar_) draw();
}

Progress::~Progress() {
  if (!bar_) return;
  std::fputs(kClearLine, stream_);
  std::fflush(stream_);
}

void Progress::line(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (bar_) {
    label_ = text.substr(0, kLabelWidth);
    draw();
  } else {
    std::fprintf(stream_, "%s\n", text.c_str());
    std::fflush(stream_);
  }
}

void Progress::step(std::size_t done) {
  std::lock_guard lock(mutex_);
  done_ = done;
  if (bar_) draw();
}

void Progress::draw() {
  const std::size_t filled = total_ ? std::min(kBarWidth, kBarWidth * done_ / total_) : kBarWidth;
  const std::string text = fmt::format("{}[{:#<{}}{:.<{}}] {}/{} {}", kClearLine, "", filled, "",
                                       kBarWidth - filled, done_, total_, label_);
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

}  // namespace bdcp::autotune
