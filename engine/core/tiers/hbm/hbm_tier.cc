#include "tiers/hbm/hbm_tier.h"

#include <algorithm>
#include <cstring>

#include "access/phase.h"
#include "errors/error.h"
#include "tiers/hbm/device_steps.h"

namespace embstore {
namespace {

// Parts of a piece begin at offsets at which kernels can move 16 bytes at once.
constexpr size_t kAlignment = 16;

constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t rows_a_piece(const RowLayout& layout, uint64_t slots, size_t bytes) {
  const size_t most = bytes / (sizeof(Slot) + sizeof(RowHeader) + layout.row_bytes());
  return std::max<size_t>(1, std::min<uint64_t>(most, slots));
}

}  // namespace

// A piece begins with the number of its rows, for kernels.
HbmTier::PieceLayout::PieceLayout(size_t rows, size_t row_floats)
    : slots(kAlignment),
      headers(slots + aligned(rows * sizeof(Slot))),
      floats(headers + rows * sizeof(RowHeader)),
      end(floats + rows * row_floats * sizeof(float)) {}

HbmTier::HbmTier(const RowLayout& layout, uint64_t slots, std::shared_ptr<gpu::Device> device,
                 size_t piece_bytes, Copies copies)
    : layout_(layout),
      device_(std::move(device)),
      rows_a_piece_(embstore::rows_a_piece(layout, slots, piece_bytes)),
      slots_(slots, slots, std::max<uint64_t>(slots / 32, 256)),
      ranks_(slots, slots, /*accessed=*/false),
      keys_(slots, PageSize::kSmall),
      stream_(*device_),
      floats_(*device_, static_cast<uint32_t>(slots), static_cast<uint32_t>(layout.row_floats())),
      device_ranks_(*device_, static_cast<uint32_t>(slots)),
      pieces_{Piece(*device_, PieceLayout(rows_a_piece_, layout.row_floats()).end),
              Piece(*device_, PieceLayout(rows_a_piece_, layout.row_floats()).end)},
      changes_(*device_, PieceLayout(rows_a_piece_, layout.row_floats()).end),
      mirror_(*device_, static_cast<uint32_t>(slots), stream_),
      is_mirrored_(slots),
      changed_(slots),
      is_marked_(copies == Copies::kInPool ? slots : 1, PageSize::kSmall),
      remarked_(copies == Copies::kInPool ? slots : 0),
      is_synced_(*device_),
      device_bytes_(floats_.floats().bytes() + device_ranks_.bytes() + 3 * pieces_[0].on_device.bytes() +
                    mirror_.bytes()) {
  if (copies == Copies::kNone) return;
  marks_.emplace(*device_, static_cast<uint32_t>(slots), stream_);
  device_bytes_ += marks_->bytes();
}

HbmTier::~HbmTier() {
  // The stream may still use what is freed below.
  gpu::ignoring_a_lost_device([this] { device_->synchronise(stream_); });
}

// --- Writing

void HbmTier::write(const RowBatch& rows, std::span<Slot> slots) {
  if (!slots_.try_claim(rows.size())) {
    throw Error(ErrorKind::kStoreFull, "the HBM tier has no " + std::to_string(rows.size()) +
                                           " free slots of its " + std::to_string(slots_.slots()));
  }
  slots_.take(slots);
  try {
    Phase phase(meter());
    const MutexLock lock(mutex_);
    for (size_t first = 0; first < rows.size(); first += rows_a_piece_) {
      Piece& piece = pieces_[next_piece_++ % pieces_.size()];
      write_piece(piece, rows, first, slots.subspan(first, std::min(rows_a_piece_, rows.size() - first)));
    }
    phase.count(Access::kStore, rows.size(), layout_.row_bytes());
    phase.count(Access::kStore, rows.size(), sizeof(RowHeader));
  } catch (...) {
    slots_.give_back(std::span<const Slot>(slots));
    throw;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowHeader& header = rows.header(i);
    keys_[slots[i]].store(header.key, std::memory_order_relaxed);
    ranks_.fill(slots[i], header.key, header.frequency, header.served, header.stamp);
    changed_.note(slots[i]);
  }
}

gpu::DeviceRows::Batch HbmTier::floats_of(const Piece& piece, size_t rows) {
  const gpu::DeviceAddress begin = piece.on_device.address();
  const PieceLayout layout(rows, 0);
  return {.rows = begin + layout.floats,
          .most = rows,
          .slots = {begin + layout.slots, rows},
          .places = {.end = {begin, 1}}};
}

gpu::DeviceRanks::Batch HbmTier::headers_of(const Piece& piece, size_t rows) {
  const gpu::DeviceAddress begin = piece.on_device.address();
  const PieceLayout layout(rows, 0);
  return {
      .headers = {begin + layout.headers, rows}, .slots = {begin + layout.slots, rows}, .count = {begin, 1}};
}

void HbmTier::write_piece(Piece& piece, const RowBatch& rows, size_t first, std::span<const Slot> slots) {
  const PieceLayout layout(slots.size(), layout_.row_floats());
  device_->synchronise(piece.is_done);
  std::byte* const host = piece.on_host.data();
  const auto count = static_cast<uint32_t>(slots.size());
  std::memcpy(host, &count, sizeof(count));
  std::memcpy(host + layout.slots, slots.data(), slots.size_bytes());
  std::memcpy(host + layout.headers, &rows.header(first), slots.size() * sizeof(RowHeader));
  std::memcpy(host + layout.floats, rows.row(first), slots.size() * layout_.row_bytes());
  device_->copy_to_device(piece.on_device.address(), host, layout.end, stream_);
  device_ranks_.put(headers_of(piece, slots.size()), stream_);
  floats_.scatter(floats_of(piece, slots.size()), floats_.row_floats(), stream_);
  device_->record(piece.is_done, stream_);
}

// --- Reading

void HbmTier::read_rows(RowBatch& rows, RowPart part) const {
  rows.start_reading(part == RowPart::kAll || layout_.slot_count() == 0);
  const std::span<const Place> places = rows.places();
  const size_t floats = part == RowPart::kAll ? layout_.row_floats() : layout_.block_floats();
  Phase phase(meter());
  size_t read = 0;
  try {
    if (DeviceSteps::Function::is_under_way()) {
      throw Error(ErrorKind::kInvalidArgument, "a step missed rows that the GPU has");
    }
    const MutexLock lock(mutex_);
    read_pieces(
        places.size(), floats, [&](size_t i) { return places[i].slot; },
        [&](size_t i, const RowHeader& header, const std::byte* row) {
          rows.header(i) = header;
          rows.header(i).key = places[i].key;
          std::memcpy(rows.row(i), row, floats * sizeof(float));
          read = i + 1;
        });
  } catch (const Error& error) {
    for (size_t i = read; i < places.size(); ++i) rows.add_damaged(i, error.what());
  }
  phase.count(Access::kLoad, places.size(), floats * sizeof(float));
  phase.count(Access::kLoad, places.size(), sizeof(RowHeader));
}

template <class SlotOf, class Take>
void HbmTier::read_pieces(size_t count, size_t floats, SlotOf slot_of, Take take) const {
  Piece* started = nullptr;  // started, not ended
  for (size_t first = 0; first < count; first += rows_a_piece_) {
    Piece& piece = pieces_[next_piece_++ % pieces_.size()];
    device_->synchronise(piece.is_done);
    piece.first = first;
    piece.rows = std::min(rows_a_piece_, count - first);
    start_reading(piece, floats, slot_of);
    if (started != nullptr) end_reading(*started, floats, take);
    started = &piece;
  }
  if (started != nullptr) end_reading(*started, floats, take);
}

template <class SlotOf>
void HbmTier::start_reading(Piece& piece, size_t floats, SlotOf slot_of) const {
  const PieceLayout layout(piece.rows, floats);
  std::byte* const host = piece.on_host.data();
  const auto count = static_cast<uint32_t>(piece.rows);
  std::memcpy(host, &count, sizeof(count));
  for (size_t i = 0; i < piece.rows; ++i) {
    const Slot slot = slot_of(piece.first + i);
    std::memcpy(host + layout.slots + i * sizeof(Slot), &slot, sizeof(Slot));
  }
  const gpu::DeviceAddress device = piece.on_device.address();
  device_->copy_to_device(device, host, layout.headers, stream_);
  device_ranks_.take(headers_of(piece, piece.rows), stream_);
  if (floats != 0) floats_.gather(floats_of(piece, piece.rows), static_cast<uint32_t>(floats), stream_);
  device_->copy_to_host(host + layout.headers, device + layout.headers, layout.end - layout.headers, stream_);
  device_->record(piece.is_done, stream_);
}

template <class Take>
void HbmTier::end_reading(const Piece& piece, size_t floats, Take take) const {
  const PieceLayout layout(piece.rows, floats);
  device_->synchronise(piece.is_done);
  const std::byte* const host = piece.on_host.data();
  for (size_t i = 0; i < piece.rows; ++i) {
    RowHeader header;
    std::memcpy(&header, host + layout.headers + i * sizeof(RowHeader), sizeof(RowHeader));
    take(piece.first + i, header, host + layout.floats + i * floats * sizeof(float));
  }
}

void HbmTier::refresh_ranks(std::span<const Slot> slots) {
  const MutexLock lock(mutex_);
  read_pieces(
      slots.size(), /*floats=*/0, [&](size_t i) { return slots[i]; },
      [&](size_t i, const RowHeader& header, const std::byte*) {
        if (ranks_.is_filled(slots[i]))
          ranks_.fill(slots[i], key(slots[i]), header.frequency, header.served, header.stamp);
      });
}

void HbmTier::check_not_lost() const { static_cast<void>(device_->memory()); }

// --- The mirror

void HbmTier::sync_mirror_to(gpu::Stream stream) {
  const MutexLock lock(mutex_);
  change_bytes_ = 0;
  update_mirror();
  if (marks_) update_marks();
  device_->record(is_synced_, stream_);
  device_->wait(stream, is_synced_);
}

// Removes all slots that rows left before it enters any that came: a slot may have another key's row now, and
// a key another slot.
void HbmTier::update_mirror() {
  change_noted(Change::kRemoved, changed_, [this](Slot slot) {
    mutex_.assert_held();
    return is_mirrored_.contains(slot);
  });
  change_noted(Change::kAdded, changed_, [this](Slot slot) { return ranks_.is_filled(slot); });
  changed_.clear();
}

void HbmTier::update_marks() {
  const auto is_marked = [this](Slot slot) { return is_marked_[slot].load(std::memory_order_relaxed) != 0; };
  change_noted(Change::kMarked, remarked_, is_marked);
  change_noted(Change::kUnmarked, remarked_, [&](Slot slot) { return !is_marked(slot); });
  remarked_.clear();
}

void HbmTier::mark(Slot slot, bool has_copy) {
  if (is_marked_[slot].exchange(has_copy ? 1 : 0, std::memory_order_relaxed) != (has_copy ? 1 : 0)) {
    remarked_.note(slot);
  }
}

template <class IsWanted>
void HbmTier::change_noted(Change change, const ChangedSlots& noted, IsWanted is_wanted) {
  constexpr size_t kSlotsAtOnce = 4096;
  std::vector<Slot> slots;
  slots.reserve(kSlotsAtOnce);
  const auto change_some = [&] {
    mutex_.assert_held();
    put_changes(change, slots);
    slots.clear();
  };
  noted.for_each([&](Slot slot) {
    if (!is_wanted(slot)) return;
    slots.push_back(slot);
    if (slots.size() == kSlotsAtOnce) change_some();
  });
  change_some();
}

// A piece of any size has room for one slot and its key.
void HbmTier::put_changes(Change change, std::span<const Slot> slots) {
  constexpr size_t kBytesOfOne = 2 * kAlignment + aligned(sizeof(int64_t));
  Piece& piece = changes_;
  while (!slots.empty()) {
    if (change_bytes_ + kBytesOfOne > piece.on_host.count()) {
      device_->synchronise(piece.is_done);
      change_bytes_ = 0;
    }
    const size_t most =
        (piece.on_host.count() - change_bytes_ - 2 * kAlignment) / (sizeof(Slot) + sizeof(int64_t));
    const std::span<const Slot> now = slots.first(std::min(slots.size(), most));
    slots = slots.subspan(now.size());
    const size_t slots_at = kAlignment;
    const size_t keys_at = slots_at + aligned(now.size_bytes());
    std::byte* const host = piece.on_host.data() + change_bytes_;
    const auto count = static_cast<uint32_t>(now.size());
    std::memcpy(host, &count, sizeof(count));
    std::memcpy(host + slots_at, now.data(), now.size_bytes());
    for (size_t i = 0; i < now.size(); ++i) {
      const int64_t key = this->key(now[i]);
      std::memcpy(host + keys_at + i * sizeof(key), &key, sizeof(key));
    }
    const gpu::DeviceAddress device = piece.on_device.address() + change_bytes_;
    const gpu::Global<const uint32_t> device_slots{device + slots_at, now.size()};
    const gpu::Global<const uint32_t> device_count{device, 1};
    const size_t bytes = keys_at + now.size() * sizeof(int64_t);
    device_->copy_to_device(device, host, bytes, stream_);
    switch (change) {
      case Change::kAdded:
        mirror_.insert({device + keys_at, now.size()}, device_slots, device_count, stream_);
        for (const Slot slot : now) is_mirrored_.add(slot);
        break;
      case Change::kRemoved:
        mirror_.erase_slots(device_slots, device_count, stream_);
        for (const Slot slot : now) is_mirrored_.remove(slot);
        break;
      case Change::kMarked:
      case Change::kUnmarked:
        marks_->set(change == Change::kMarked, device_slots, {.end = device_count}, stream_);
        break;
    }
    device_->record(piece.is_done, stream_);
    change_bytes_ += aligned(bytes);
  }
}

// --- Erasing

void HbmTier::erase(std::span<const Place> places) {
  for (const Place& place : places) {
    ranks_.empty(place.slot);
    changed_.note(place.slot);
  }
  slots_.give_back(places);
}

TierStats HbmTier::stats() const {
  return TierStats{
      .name = "HBM",
      .rows = slots_.taken_slots(),
      .row_bytes = layout_.row_bytes(),
      .address = 0,
      .mapped_bytes = device_bytes_,
      .path = std::nullopt,
      .is_pmem = std::nullopt,
      .gpu = device_->name(),
  };
}

}  // namespace embstore
