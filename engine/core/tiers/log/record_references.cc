#include "tiers/log/record_references.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

namespace embstore::log {

RecordReferences::RecordReferences(uint64_t records, Checkpoints checkpoints)
    : words_(words_for(records)),
      bits_((checkpoints == Checkpoints::kNone ? 1 : 1 + kMaxCheckpoints) * words_ * 64),
      stripe_count_(std::clamp<size_t>(words_ / kWordsARun, 1, kMaxStripes)),
      stripes_(std::make_unique<Stripe[]>(stripe_count_)) {}

size_t RecordReferences::find(uint64_t number) const {
  size_t i = 0;
  while (i < kMaxCheckpoints && checkpoints_[i].number.load(std::memory_order_acquire) != number) ++i;
  return i;
}

bool RecordReferences::has_any() const {
  return std::any_of(checkpoints_.begin(), checkpoints_.end(), [](const Checkpoint& checkpoint) {
    return checkpoint.number.load(std::memory_order_acquire) != 0;
  });
}

bool RecordReferences::any_has(uint64_t record) const {
  for (size_t i = 0; i < kMaxCheckpoints; ++i) {
    if (checkpoints_[i].number.load(std::memory_order_acquire) == 0) continue;
    if (bits_.contains(first_word(i) * 64 + record)) return true;
  }
  return false;
}

bool RecordReferences::remove_live(uint64_t record) {
  if (!bits_.remove(record)) return false;
  live_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

bool RecordReferences::free_live(uint64_t record) {
  const MutexLock lock(stripe(record / 64));
  remove_live(record);
  return !any_has(record);
}

void RecordReferences::begin(uint64_t number) {
  const size_t checkpoint = find(0);
  for (size_t i = 0; i < words_; ++i) bits_.set_word(first_word(checkpoint) + i, bits_.word(i));
  checkpoints_[checkpoint].number.store(number, std::memory_order_release);
  checkpoints_[checkpoint].pending.store(number, std::memory_order_relaxed);
}

void RecordReferences::load(uint64_t number, std::span<const uint64_t> words) {
  const size_t checkpoint = find(0);
  bits_.assign(first_word(checkpoint), words_, words);
  checkpoints_[checkpoint].number.store(number, std::memory_order_release);
}

void RecordReferences::make_live(uint64_t number) noexcept {
  const size_t checkpoint = find(number);
  uint64_t live = 0;
  for (size_t i = 0; i < words_; ++i) {
    const uint64_t bits = word(checkpoint, i);
    bits_.set_word(i, bits);
    live += static_cast<uint64_t>(std::popcount(bits));
  }
  live_.store(live, std::memory_order_release);
}

RowWords RecordReferences::taken() const {
  RowWords words = bits_.copy(0, words_);
  for (size_t checkpoint = 0; checkpoint < kMaxCheckpoints; ++checkpoint) {
    if (checkpoints_[checkpoint].number.load(std::memory_order_relaxed) == 0) continue;
    for (size_t i = 0; i < words_; ++i) words[i] |= word(checkpoint, i);
  }
  return words;
}

RowWords RecordReferences::rows_of(uint64_t number) const {
  RowWords words = bits_.copy(first_word(find(number)), words_);
  words.resize(words_for(end_of_rows(words)));
  return words;
}

uint64_t RecordReferences::oldest_pending() const {
  uint64_t oldest = 0;
  for (const Checkpoint& checkpoint : checkpoints_) {
    const uint64_t number = checkpoint.pending.load(std::memory_order_relaxed);
    if (number != 0 && (oldest == 0 || number < oldest)) oldest = number;
  }
  return oldest;
}

bool RecordReferences::add_to_pending(uint64_t first_number, uint64_t record) {
  const MutexLock lock(stripe(record / 64));
  for (size_t i = 0; i < kMaxCheckpoints; ++i) {
    const uint64_t number = checkpoints_[i].pending.load(std::memory_order_relaxed);
    if (number != 0 && number >= first_number) bits_.add(first_word(i) * 64 + record);
  }
  return !is_live(record) && !any_has(record);
}

void RecordReferences::end_pending(uint64_t number) {
  checkpoints_[find(number)].pending.store(0, std::memory_order_relaxed);
}

void RecordReferences::drop(uint64_t number, const Freed& freed) {
  const size_t dropped = find(number);
  // A thread that adds to the checkpoint holds the record's stripe: it either sees this store, or its bit is
  // seen below.
  checkpoints_[dropped].pending.store(0, std::memory_order_relaxed);
  std::array<Slot, kWordsARun * 64> free;  // of one run; filled from the end, so that the highest comes first
  const size_t runs = (words_ + kWordsARun - 1) / kWordsARun;
  for (size_t run = runs; run-- > 0;) {
    const size_t first = run * kWordsARun;
    const size_t end = std::min(first + kWordsARun, words_);
    size_t begin = free.size();
    {
      const MutexLock lock(stripe(first));
      for (size_t i = first; i < end; ++i) {
        uint64_t unneeded = word(dropped, i);
        if (unneeded == 0) continue;
        bits_.set_word(first_word(dropped) + i, 0);
        unneeded &= ~bits_.word(i);
        for (size_t other = 0; other < kMaxCheckpoints; ++other) {
          if (checkpoints_[other].number.load(std::memory_order_acquire) != 0) unneeded &= ~word(other, i);
        }
        for_each_row(unneeded, i * 64, [&](uint64_t record) { free[--begin] = static_cast<Slot>(record); });
      }
    }
    if (begin != free.size()) freed(std::span(free).subspan(begin));
  }
  checkpoints_[dropped].number.store(0, std::memory_order_release);
}

}  // namespace embstore::log
