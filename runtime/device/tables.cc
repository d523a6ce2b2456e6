#include "device/tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "bdcp/error.h"

namespace bdcp::device {
namespace {

constexpr std::size_t kAlign = 256, kSmallest = std::size_t{64} << 10;
constexpr std::size_t kCounts = kAlign / sizeof(int);  // side by side: a few lines serve all launches
constexpr std::uint64_t kNoStream = ~std::uint64_t{0}, kNever = ~std::uint64_t{0};
// Blocks whose streams nobody uses any more go back to the driver, all at once: freeing waits for the device.
constexpr std::size_t kMostUnmarked = 64;
constexpr std::size_t kUsualStreams = 4;

}  // namespace

struct Tables::Block {
  std::size_t capacity = 0;
  PinnedBuffer host;
  Buffer memory;
  OwnedEvent uploaded;
  std::atomic<bool> captured = false;               // graphs that read it may run on any stream, any time
  std::vector<std::uint64_t> streams;               // ids of those that read it and have no event in `passed`
  std::vector<std::shared_ptr<OwnedEvent>> passed;  // one event may serve several blocks
};

Tables::Tables(std::shared_ptr<TablePool> pool)
    : pool_(std::move(pool)), staged_(pool_->take_staging()), latest_stream_(kNoStream) {}

Tables::~Tables() {
  pool_->give_staging(std::move(staged_));
  if (block_) pool_->retire(std::move(block_));
}

std::size_t Tables::add(const void* data, std::size_t bytes, std::size_t room) {
  require(!block_, ErrorCode::internal, "tables are uploaded already");
  const std::size_t offset = (staged_.size() + kAlign - 1) / kAlign * kAlign;
  staged_.resize(offset + std::max(bytes, room));
  if (bytes > 0) std::memcpy(staged_.data() + offset, data, bytes);
  offsets_.push_back(offset);
  return offset;
}

std::size_t Tables::add_count(int count) {
  if (counts_left_ == 0) {
    count_at_ = add(nullptr, 0, kCounts * sizeof(int));
    counts_left_ = kCounts;
  }
  const std::size_t offset = count_at_ + (kCounts - counts_left_--) * sizeof(int);
  std::memcpy(staged_.data() + offset, &count, sizeof(int));
  return offset;
}

void Tables::stage_in_block() {
  block_ = pool_->acquire(staged_.size());
  std::memcpy(block_->host.get(), staged_.data(), staged_.size());
  bytes_ = staged_.size();
  offsets_.push_back(bytes_);
  pool_->give_staging(std::exchange(staged_, {}));
}

std::shared_ptr<Tables> Tables::another() const { return std::make_shared<Tables>(pool_); }

void Tables::upload() {
  require(!block_, ErrorCode::internal, "tables are uploaded already");
  if (staged_.empty()) return;
  stage_in_block();
  Device& device = *pool_->device_;
  void* const stream = pool_->copies_.get();
  device.copy_async(block_->memory.get(), block_->host.get(), bytes_, stream);
  device.record(block_->uploaded.get(), stream);
  base_ = static_cast<const std::byte*>(block_->memory.get());
}

void Tables::join(const std::shared_ptr<const Tables>& other) {
  require(!block_, ErrorCode::internal, "tables are uploaded already");
  const std::shared_ptr<const Tables>& first = other->first_ ? other->first_ : other;
  if (!staged_.empty()) stage_in_block();
  require(offsets_ == first->offsets_, ErrorCode::internal, "tables that join others are laid out differently");
  first_ = first;
  base_ = first->base_;
  refill_ = kNever;
}

void Tables::refill(void* stream) const {
  if (!block_) return;
  Device& device = *pool_->device_;
  require(!device.capturing(stream), ErrorCode::invalid_argument,
          "refill: the stream is being captured; work lists are refilled between replays");
  const Tables& place = owner();
  place.order_after_upload(stream, false);
  device.copy_async(place.block_->memory.get(), block_->host.get(), bytes_, stream);
  refill_ = ++place.refills_;
  const std::uint64_t id = device.stream_id(stream);
  note_stream(id);
  if (first_) place.note_stream(id);
  if (pool_->unmarked_count_.load(std::memory_order_acquire) > 0) pool_->mark_passed(stream, id);
}

bool Tables::captured() const { return owner().block_ && owner().block_->captured; }

bool Tables::use(void* stream) const {
  if (!block_) return false;
  const Tables& place = owner();
  require(
      refill_.load(std::memory_order_relaxed) == place.refills_.load(std::memory_order_relaxed),
      ErrorCode::invalid_argument,
      "the work lists on the device are those of another step of the graph class; call Step::refill with the "
      "call's stream first");
  Device& device = *pool_->device_;
  const bool captured = device.capturing(stream);
  if (captured) place.block_->captured.store(true, std::memory_order_relaxed);
  place.order_after_upload(stream, captured);
  // What a graph reads is never reused. Nor is this stream good for anything now: drivers do not tell the id of
  // one that is being captured, and an event would belong to the graph.
  if (captured) return true;
  const std::uint64_t id = device.stream_id(stream);
  place.note_stream(id);
  if (pool_->unmarked_count_.load(std::memory_order_acquire) > 0) pool_->mark_passed(stream, id);
  return false;
}

void Tables::note_stream(std::uint64_t id) const {
  if (latest_stream_.load(std::memory_order_relaxed) == id) return;
  const std::lock_guard lock(streams_mutex_);
  std::vector<std::uint64_t>& known = block_->streams;
  if (std::find(known.begin(), known.end(), id) == known.end()) known.push_back(id);
  latest_stream_.store(id, std::memory_order_relaxed);
}

void Tables::order_after_upload(void* stream, bool captured) const {
  if (arrived_.load(std::memory_order_acquire)) return;
  Device& device = *pool_->device_;
  void* const uploaded = block_->uploaded.get();
  if (captured) {  // a graph cannot wait for an event from outside of it
    const RelaxedCaptures relaxed(device.driver());
    device.synchronize_event(uploaded);
  } else if (!device.done(uploaded)) {
    return device.wait(stream, uploaded);
  }
  arrived_.store(true, std::memory_order_release);
}

TablePool::TablePool(std::shared_ptr<Device> device)
    : device_(std::move(device)), copies_(device_->create_stream(true)) {}
TablePool::~TablePool() = default;

std::vector<std::byte> TablePool::take_staging() {
  const std::lock_guard lock(mutex_);
  if (staging_.empty()) return {};
  std::vector<std::byte> staging = std::move(staging_.back());
  staging_.pop_back();
  return staging;
}

void TablePool::give_staging(std::vector<std::byte> staging) noexcept {
  if (staging.capacity() == 0) return;
  staging.clear();
  const std::lock_guard lock(mutex_);
  try {
    staging_.push_back(std::move(staging));
  } catch (const std::bad_alloc&) {  // the next step allocates its own
  }
}

/// Whether nothing on the device touches the block any more.
bool TablePool::unused(const Block& block) {
  const auto done = [&](const std::shared_ptr<OwnedEvent>& event) { return device_->done(event->get()); };
  return device_->done(block.uploaded.get()) && std::all_of(block.passed.begin(), block.passed.end(), done);
}

std::unique_ptr<Tables::Block> TablePool::acquire(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = marked_.begin(); it != marked_.end(); ++it) {
      if ((*it)->capacity < bytes || !unused(**it)) continue;
      std::unique_ptr<Block> block = std::move(*it);
      marked_.erase(it);
      for (std::shared_ptr<OwnedEvent>& event : block->passed)
        if (event.use_count() == 1) spare_events_.push_back(std::move(event));
      block->passed.clear();
      return block;
    }
  }
  auto block = std::make_unique<Block>();
  block->capacity = std::bit_ceil(std::max(bytes, kSmallest));
  block->host = device_->allocate_pinned(block->capacity);
  block->memory = device_->allocate(block->capacity);
  block->uploaded = device_->create_event();
  // With the block come the event and the room that it will need later, in calls.
  block->streams.reserve(kUsualStreams);
  block->passed.reserve(kUsualStreams);
  auto event = std::make_shared<OwnedEvent>(device_->create_event());
  const std::lock_guard lock(mutex_);
  ++blocks_;
  marked_.reserve(blocks_);
  unmarked_.reserve(blocks_);
  spare_events_.push_back(std::move(event));
  return block;
}

void TablePool::retire(std::unique_ptr<Block> block) noexcept {
  const RelaxedCaptures relaxed(device_->driver());
  std::vector<std::unique_ptr<Block>> surplus;  // freed after the lock
  std::unique_ptr<Block> captured;              // likewise
  const std::lock_guard lock(mutex_);
  if (block->captured) {
    captured = std::move(block);
    --blocks_;
    return;
  }
  try {
    (block->streams.empty() ? marked_ : unmarked_).push_back(std::move(block));
    if (unmarked_.size() > kMostUnmarked) {
      surplus.swap(unmarked_);
      blocks_ -= surplus.size();
    }
    unmarked_count_.store(unmarked_.size(), std::memory_order_release);
  } catch (const std::bad_alloc&) {  // the block is freed, which is always safe
  }
}

std::shared_ptr<OwnedEvent> TablePool::spare_event() {
  if (spare_events_.empty()) return std::make_shared<OwnedEvent>(device_->create_event());
  std::shared_ptr<OwnedEvent> event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

/// `stream` is alive: an event on it comes after all that retired blocks were used for on it.
void TablePool::mark_passed(void* stream, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<OwnedEvent> event;
  for (const std::unique_ptr<Block>& block : unmarked_) {
    const auto found = std::find(block->streams.begin(), block->streams.end(), id);
    if (found == block->streams.end()) continue;
    if (!event) {
      event = spare_event();
      device_->record(event->get(), stream);
    }
    block->passed.push_back(event);
    block->streams.erase(found);
  }
  const auto open = std::stable_partition(unmarked_.begin(), unmarked_.end(),
                                          [](const auto& block) { return !block->streams.empty(); });
  std::move(open, unmarked_.end(), std::back_inserter(marked_));
  unmarked_.erase(open, unmarked_.end());
  unmarked_count_.store(unmarked_.size(), std::memory_order_release);
}

}  // namespace bdcp::device
