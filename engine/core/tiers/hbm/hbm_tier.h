// A tier of rows in a GPU's memory. The host can't address them: it writes and reads them in batches, through
// pinned buffers.
//
// A row's floats, and its access counts, lie in arrays by slot on the device. Its key is kept in DRAM, and
// its rank too, as the host last knew it: ranks only grow, so the coldest rows are found by asking the device
// only about those that seem coldest. All copies go over one stream, so a read sees all earlier writes, and a
// row that is read while its slot is given out again is either the old row or the new one, whole.
//
// A mirror on the device says which keys have their row in which slot, for steps that find rows there. Rows
// that came and left are noted, and the mirror is brought up to date when a step asks for it: a table without
// such steps pays for the notes alone.
//
// Above a durable pool, rows of which the pool has a clean copy are marked on the device: before a step
// changes rows, it reports which of them are marked.
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
  // Large enough for a bus's bandwidth, small beside the memory of a table.
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  // Says if rows may have clean copies in a tier below, so that marks are needed.
  enum class Copies { kNone, kInPool };
  // Throws Error(kStoreFull) if the device has too little memory. Rows cross the bus in pieces of at most
  // piece_bytes, but of at least one row.
  HbmTier(const RowLayout& layout, uint64_t slots, std::shared_ptr<gpu::Device> device,
          size_t piece_bytes = kPieceBytes, Copies copies = Copies::kNone);
  ~HbmTier() override;

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  uint64_t free_places() const override { return slots_.free_slots(); }
  // Reports every row as damaged if the device is lost.
  void read_rows(RowBatch& rows, RowPart part) const override;
  void check_not_lost() const override;
  // Also counts steps that change rows or count accesses to them: what was read before is no longer the row.
  uint64_t reused_places() const override {
    return slots_.reused_slots() + changing_steps_.load(std::memory_order_acquire);
  }
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;

  // --- Steps on the device, which find rows by the mirror.
  gpu::Device& device() const { return *device_; }
  const std::shared_ptr<gpu::Device>& shared_device() const { return device_; }
  // Brings the mirror and the marks up to date on the stream: kernels put on it later find exactly the rows
  // that are in the tier now. The host waits only if more rows came, left or were marked than fit into a
  // piece. REQUIRES: no thread writes, erases or marks rows until that work on the stream is done, nor did
  // while work that was put on the stream after the last sync_mirror_to() was under way.
  void sync_mirror_to(gpu::Stream stream);
  // REQUIRES for these: sync_mirror_to() was called for the stream on which they are used.
  const gpu::Mirror& mirror() const NO_THREAD_SAFETY_ANALYSIS { return mirror_; }
  const gpu::DeviceRows& rows() const NO_THREAD_SAFETY_ANALYSIS { return floats_; }
  // For a step on the stream that counts accesses.
  gpu::DeviceRanks& ranks_to_count() NO_THREAD_SAFETY_ANALYSIS {
    changing_steps_.fetch_add(1, std::memory_order_release);
    ranks_lag_.store(true, std::memory_order_release);
    return device_ranks_;
  }
  // For a step on the stream that changes rows.
  gpu::DeviceRows& rows_to_change() NO_THREAD_SAFETY_ANALYSIS {
    changing_steps_.fetch_add(1, std::memory_order_release);
    return floats_;
  }

  // --- Marks, for a tier with copies. Marks the row if it has a clean copy, and else clears its mark.
  // REQUIRES: the mutex of the row's shard is held; no step on the device is under way.
  void mark(Slot slot, bool has_copy);
  // A step clears the marks of the rows that it changes, on the device alone. Null if there are no marks.
  // REQUIRES: sync_mirror_to() was called for the stream on which they are used.
  gpu::SlotMarks* marks() NO_THREAD_SAFETY_ANALYSIS { return marks_ ? &*marks_ : nullptr; }

  // --- RankedTier
  SlotRanks& ranks() const override { return ranks_; }
  uint64_t slot_count() const override { return slots_.slots(); }
  uint64_t max_slots() const override { return slots_.max_slots(); }
  uint64_t first_never_taken() const override { return slots_.first_never_taken(); }
  int64_t key(Slot slot) const override { return keys_[slot].load(std::memory_order_relaxed); }
  bool keys_are_with_ranks() const override { return true; }
  bool take_arrivals(std::vector<Slot>& slots) override { return slots_.take_arrivals(slots); }
  bool is_first() const override { return false; }
  bool ranks_lag() const override { return ranks_lag_.load(std::memory_order_acquire); }
  void refresh_ranks(std::span<const Slot> slots) override;

 private:
  // Buffers for rows in transit, at most rows_a_piece_ at once: one on the host, and its copy on the device.
  struct Piece {
    Piece(gpu::Device& device, size_t bytes)
        : on_host(device, bytes), on_device(device, bytes), is_done(device) {}

    gpu::PinnedArray<std::byte> on_host;
    gpu::DeviceArray<std::byte> on_device;
    gpu::OwnedEvent is_done;  // reached when nothing on the stream uses the piece any more
    size_t first = 0;         // when reading: the number of its first row in the batch
    size_t rows = 0;
  };
  // The offsets of the parts of a piece with this number of rows.
  struct PieceLayout {
    PieceLayout(size_t rows, size_t row_floats);
    size_t slots;
    size_t headers;
    size_t floats;
    size_t end;
  };

  void write_piece(Piece& piece, const RowBatch& rows, size_t first, std::span<const Slot> slots)
      REQUIRES(mutex_);
  // Calls slot_of(i) for the numbers of `count` rows, and take(i, header, floats) when a row has arrived,
  // with this number of floats each. If it throws, the rows that were taken are whole.
  template <class SlotOf, class Take>
  void read_pieces(size_t count, size_t floats, SlotOf slot_of, Take take) const REQUIRES(mutex_);
  template <class SlotOf>
  void start_reading(Piece& piece, size_t floats, SlotOf slot_of) const REQUIRES(mutex_);
  template <class Take>
  void end_reading(const Piece& piece, size_t floats, Take take) const REQUIRES(mutex_);
  void update_mirror() REQUIRES(mutex_);
  void update_marks() REQUIRES(mutex_);
  // A kind of change of the mirror, or of the marks.
  enum class Change { kAdded, kRemoved, kMarked, kUnmarked };
  // Makes the change for those of the noted slots for which is_wanted(slot) is true.
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

  // Guards the order on the stream: threads put their batches on it one after the other.
  mutable Mutex mutex_;
  gpu::DeviceRows floats_ GUARDED_BY(mutex_);
  gpu::DeviceRanks device_ranks_ GUARDED_BY(mutex_);
  // The host fills or empties one piece while the device works on the other.
  mutable std::array<Piece, 2> pieces_ GUARDED_BY(mutex_);
  mutable size_t next_piece_ GUARDED_BY(mutex_) = 0;
  // Changes of the mirror and of marks, which use one part of it after the other.
  Piece changes_ GUARDED_BY(mutex_);
  size_t change_bytes_ GUARDED_BY(mutex_) = 0;  // bytes of it in use
  gpu::Mirror mirror_ GUARDED_BY(mutex_);
  SlotSet is_mirrored_ GUARDED_BY(mutex_);
  ChangedSlots changed_;  // since the mirror was up to date
  std::optional<gpu::SlotMarks> marks_ GUARDED_BY(mutex_);
  const PageArray<std::atomic<uint8_t>> is_marked_;  // as the host set it last
  ChangedSlots remarked_;                            // since the marks were up to date
  const gpu::OwnedEvent is_synced_;
  std::atomic<uint64_t> changing_steps_{0};
  std::atomic<bool> ranks_lag_{false};
  uint64_t device_bytes_;
};

}  // namespace embstore
