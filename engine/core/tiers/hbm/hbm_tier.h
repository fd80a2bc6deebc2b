// Rows in a GPU's memory, which the host can't address: it writes and reads them in batches, through pinned buffers.
//
// A row's floats, and what accesses count of it, lie in arrays by slot on the device. Its key is kept in DRAM, and its rank
// too, as it was when the host knew it last: ranks only grow, so the coldest rows are found without the device but for a look
// at those that seem coldest. Everything goes over one stream, so what is read was written before, and a row that is read while
// its slot is given out again is the old one or the new one, whole.
//
// A mirror on the device says which keys have their row in which slot, for steps that find rows there. What came and left is
// noted, and the mirror brought up to date when a step asks for it: who never does pays for no more than the notes.
//
// Above a durable pool, rows of which the pool has a clean copy are marked on the device likewise: a step says which of them it
// is about to change, before it does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/device.h"
#include "gpu/operations/device_ranks.h"
#include "gpu/operations/device_rows.h"
#include "gpu/operations/mirror.h"
#include "gpu/operations/slot_marks.h"
#include "memory/huge_pages.h"
#include "row/row_layout.h"
#include "threads/mutex.h"
#include "tiers/hbm/changed_slots.h"
#include "tiers/memory/ranked_tier.h"
#include "tiers/memory/slot_allocator.h"
#include "tiers/memory/slot_ranks.h"
#include "tiers/memory/slot_set.h"
#include "tiers/tier.h"

namespace embstore {

class HbmTier final : public Tier, public RankedTier {
 public:
  // Large enough for a bus's bandwidth, small beside what a table takes.
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  // Whether rows have clean copies in a tier below, so that there are marks.
  enum class Copies { kNone, kInPool };
  // Throws Error(kStoreFull) where the device hasn't the memory. Rows go over the bus in pieces of so many bytes, or of one row.
  HbmTier(const RowLayout& layout, uint64_t slots, std::shared_ptr<gpu::Device> device,
          size_t piece_bytes = kPieceBytes, Copies copies = Copies::kNone);
  ~HbmTier() override;

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  uint64_t free_places() const override { return slots_.free_slots(); }
  // If the device is lost, every row of it is damaged.
  void read_rows(RowBatch& rows, RowPart part) const override;
  void check_not_lost() const override;
  // Steps that change rows, or count accesses to them, count too: what was read before isn't the row any more.
  uint64_t reused_places() const override {
    return slots_.reused_slots() + changing_steps_.load(std::memory_order_acquire);
  }
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;

  // --- Steps on the device, which find rows by the mirror.
  gpu::Device& device() const { return *device_; }
  const std::shared_ptr<gpu::Device>& shared_device() const { return device_; }
  // What is put on the stream from now on finds every row that is in the tier, and none that has left, and marks as they are. The
  // host waits only where more rows came or left, or were marked, than fit into a piece. REQUIRES: nobody writes, erases or marks
  // rows until it is done, or did since the last time while what was put on that stream was under way.
  void join(gpu::Stream stream);
  // REQUIRES of these: the stream on which they are used has joined.
  const gpu::Mirror& mirror() const NO_THREAD_SAFETY_ANALYSIS { return mirror_; }
  const gpu::DeviceRows& rows() const NO_THREAD_SAFETY_ANALYSIS { return floats_; }
  // A step on the stream counts accesses.
  gpu::DeviceRanks& ranks_to_count() NO_THREAD_SAFETY_ANALYSIS {
    changing_steps_.fetch_add(1, std::memory_order_release);
    ranks_lag_.store(true, std::memory_order_release);
    return device_ranks_;
  }
  // A step on the stream changes rows.
  gpu::DeviceRows& rows_to_change() NO_THREAD_SAFETY_ANALYSIS {
    changing_steps_.fetch_add(1, std::memory_order_release);
    return floats_;
  }

  // --- Marks, of a tier with copies.
  // Whether there is a clean copy of the row. REQUIRES: the mutex of the row's shard; no step on the device is under way.
  void mark(Slot slot, bool has_copy);
  // A step takes the mark of a row that it changes away, on the device alone. Null where there are none. REQUIRES: the stream on
  // which they are used has joined.
  gpu::SlotMarks* marks() NO_THREAD_SAFETY_ANALYSIS { return marks_ ? &*marks_ : nullptr; }

  // --- RankedTier
  SlotRanks& ranks() const override { return ranks_; }
  uint64_t slot_count() const override { return slots_.slots(); }
  uint64_t most_slots() const override { return slots_.most_slots(); }
  uint64_t untouched_from() const override { return slots_.untouched_from(); }
  int64_t key(Slot slot) const override { return keys_[slot].load(std::memory_order_relaxed); }
  bool keys_lie_apart() const override { return true; }
  bool take_arrivals(std::vector<Slot>& slots) override { return slots_.take_arrivals(slots); }
  bool is_first() const override { return false; }
  bool ranks_lag() const override { return ranks_lag_.load(std::memory_order_acquire); }
  void refresh_ranks(std::span<const Slot> slots) override;

 private:
  // Rows on their way, at most rows_a_piece_ at once: on the host, and what of it was copied, or is to be, on the device.
  struct Piece {
    Piece(gpu::Device& device, size_t bytes)
        : on_host(device, bytes), on_device(device, bytes), is_done(device) {}

    gpu::PinnedArray<std::byte> on_host;
    gpu::DeviceArray<std::byte> on_device;
    gpu::OwnedEvent is_done;  // nothing on the stream uses it any more
    size_t first = 0;         // of the batch's rows, those that are read
    size_t rows = 0;
  };
  // Where what lies in a piece of so many rows.
  struct PieceLayout {
    PieceLayout(size_t rows, size_t row_floats);
    size_t slots;
    size_t headers;
    size_t floats;
    size_t end;
  };

  void write_piece(Piece& piece, const RowBatch& rows, size_t first, std::span<const Slot> slots)
      REQUIRES(mutex_);
  // Calls slot_of(i) for the numbers of `count` rows, and take(i, header, floats) when the rows are there, so many floats of
  // each. Whatever throws, those that were taken are whole.
  template <class SlotOf, class Take>
  void read_pieces(size_t count, size_t floats, SlotOf slot_of, Take take) const REQUIRES(mutex_);
  template <class SlotOf>
  void start_reading(Piece& piece, size_t floats, SlotOf slot_of) const REQUIRES(mutex_);
  template <class Take>
  void end_reading(const Piece& piece, size_t floats, Take take) const REQUIRES(mutex_);
  void bring_mirror_up_to_date() REQUIRES(mutex_);
  void bring_marks_up_to_date() REQUIRES(mutex_);
  // Of the mirror, and of marks.
  enum class Change { kCame, kLeft, kMarked, kUnmarked };
  // Changes those of the noted slots that is_wanted says.
  template <class IsWanted>
  void change_noted(Change change, const ChangedSlots& noted, IsWanted is_wanted) REQUIRES(mutex_);
  void put_changes(Change change, std::span<const Slot> slots) REQUIRES(mutex_);
  // The rows of a piece, as kernels take them.
  static gpu::DeviceRows::Batch floats_of(const Piece& piece, size_t rows);
  static gpu::DeviceRanks::Batch headers_of(const Piece& piece, size_t rows);

  const RowLayout layout_;
  const std::shared_ptr<gpu::Device> device_;  // outlives what is made on it
  const size_t rows_a_piece_;
  SlotAllocator slots_;
  mutable SlotRanks ranks_;
  const PageArray<std::atomic<int64_t>> keys_;
  const gpu::OwnedStream stream_;

  // Work of several threads is put on the stream a batch after the other.
  mutable Mutex mutex_;
  gpu::DeviceRows floats_ GUARDED_BY(mutex_);
  gpu::DeviceRanks device_ranks_ GUARDED_BY(mutex_);
  // The host fills one, or empties it, while the device is at the other.
  mutable std::array<Piece, 2> pieces_ GUARDED_BY(mutex_);
  mutable size_t next_piece_ GUARDED_BY(mutex_) = 0;
  // Of the mirror and of marks: a part of it after the other.
  Piece changes_ GUARDED_BY(mutex_);
  size_t change_bytes_ GUARDED_BY(mutex_) = 0;  // of it, that are in use
  gpu::Mirror mirror_ GUARDED_BY(mutex_);
  SlotSet is_mirrored_ GUARDED_BY(mutex_);
  ChangedSlots changed_;  // since the mirror was up to date
  std::optional<gpu::SlotMarks> marks_ GUARDED_BY(mutex_);
  const PageArray<std::atomic<uint8_t>> is_marked_;  // as the host said last
  ChangedSlots remarked_;                            // since the marks were up to date
  const gpu::OwnedEvent is_joined_;
  std::atomic<uint64_t> changing_steps_{0};
  std::atomic<bool> ranks_lag_{false};
  uint64_t device_bytes_;
};

}  // namespace embstore
