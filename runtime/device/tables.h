// Read-only tables of a step on a device: collected on the host, copied there at once, in memory that later
// steps reuse.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace bdcp::device {

class TablePool;

/// One thread adds and uploads; from then on immutable and thread safe. Destroyed in any order and from any
/// thread, also while kernels that read the tables are still running.
///
/// Tables may take turns in one place on the device, so that launches which were captured with the first of
/// them serve the others: these join() it instead of being uploaded, and refill() copies one or the other
/// there.
class Tables {
 public:
  explicit Tables(std::shared_ptr<TablePool> pool);
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  /// More tables in the same pool.
  std::shared_ptr<Tables> another() const;

  /// Copies the bytes; the result is what at() takes, a multiple of 256. `room`: for what other tables may add
  /// in its place; less than `bytes` means none to spare.
  std::size_t add(const void* data, std::size_t bytes, std::size_t room = 0);
  /// A number that kernels read from the device; the result is what at() takes.
  std::size_t add_count(int count);
  /// Starts one asynchronous copy of everything that was added. At most once.
  void upload();
  /// Instead of upload(): these tables, to which the same was added but for what fits the rooms, share the
  /// place of `other`.
  void join(const std::shared_ptr<const Tables>& other);
  /// Starts one asynchronous copy on `stream` to the place that is shared: what is enqueued there afterwards
  /// finds these tables. Not while another thread refills or uses tables of the place. Throws
  /// Error(invalid_argument) on a stream that is being captured.
  void refill(void* stream) const;
  /// Whether a launch that reads the place was captured.
  bool captured() const;

  /// Device address, after upload().
  const void* at(std::size_t offset) const { return base_ + offset; }
  /// Comes before launches on `stream` that read the tables: they run after the copy, and the memory is not
  /// reused before they have ended. Whether the launches are captured; then it waits on the host until the copy
  /// has arrived, and the memory is not reused at all. Throws Error(invalid_argument) while other tables are in
  /// the place.
  bool use(void* stream) const;

 private:
  friend class TablePool;
  struct Block;
  const Tables& owner() const { return first_ ? *first_ : *this; }
  void stage_in_block();
  void order_after_upload(void* stream, bool captured) const;
  void note_stream(std::uint64_t id) const;

  std::shared_ptr<TablePool> pool_;
  std::shared_ptr<const Tables> first_;  // whose place it is; null: these tables' own
  std::vector<std::byte> staged_;
  std::vector<std::size_t> offsets_;  // where additions begin, and the end of the last one
  std::size_t count_at_ = 0, counts_left_ = 0;
  std::size_t bytes_ = 0;  // once staged in the block
  std::unique_ptr<Block> block_;
  const std::byte* base_ = nullptr;
  mutable std::atomic<bool> arrived_ = false;
  mutable std::atomic<std::uint64_t> latest_stream_;
  mutable std::atomic<std::uint64_t> refill_ = 0;   // the refill that brought these tables; 0: the upload
  mutable std::atomic<std::uint64_t> refills_ = 0;  // of the place; kept by its owner
  mutable std::mutex streams_mutex_;                // guards block_->streams
};

/// The memory of Tables on one device: pairs of pinned host and device memory. A block is free again when every
/// stream its kernels ran on has passed them. That is found out by an event which the next user of the same
/// stream records; a stream itself may be gone by the time its tables are. Thread safe; owned by shared_ptr.
class TablePool : public std::enable_shared_from_this<TablePool> {
 public:
  explicit TablePool(std::shared_ptr<Device> device);
  ~TablePool();
  std::shared_ptr<Tables> make_tables() { return std::make_shared<Tables>(shared_from_this()); }

 private:
  friend class Tables;
  using Block = Tables::Block;
  std::vector<std::byte> take_staging();
  void give_staging(std::vector<std::byte> staging) noexcept;
  std::unique_ptr<Block> acquire(std::size_t bytes);
  void retire(std::unique_ptr<Block> block) noexcept;
  void mark_passed(void* stream, std::uint64_t id);
  bool unused(const Block& block);
  std::shared_ptr<OwnedEvent> spare_event();

  std::shared_ptr<Device> device_;
  OwnedStream copies_;
  std::atomic<std::size_t> unmarked_count_ = 0;
  std::mutex mutex_;                              // guards what follows
  std::vector<std::unique_ptr<Block>> unmarked_;  // some stream has no event yet; oldest first
  std::vector<std::unique_ptr<Block>> marked_;    // free once their events are done; oldest first
  std::vector<std::shared_ptr<OwnedEvent>> spare_events_;
  std::vector<std::vector<std::byte>> staging_;
  std::size_t blocks_ = 0;
};

}  // namespace bdcp::device
