#include "tiers/pool/checkpoint_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"

namespace embstore::pool {
namespace {

constexpr size_t kWordsALine = kMediaLineBytes / sizeof(uint64_t);

}  // namespace

CheckpointTable::CheckpointTable(std::unique_ptr<DurableFile> file, uint64_t slots)
    : file_(std::move(file)), slots_(slots), shape_(slots) {}

Entry CheckpointTable::entry(size_t i) const {
  Entry entry;
  std::memcpy(&entry, file_->data() + CheckpointsShape::entry_offset(i), sizeof entry);
  return entry;
}

void CheckpointTable::sync_table() {
  file_->settle(CheckpointsShape::kTableOffset, CheckpointsShape::kTableBytes);
}

void CheckpointTable::load(const Found& found) {
  // A process that was killed may have stored what it didn't flush: that can be read, and would be relied on.
  file_->flush(CheckpointsShape::kTableOffset, CheckpointsShape::kTableBytes);
  sync_table();
  std::vector<uint64_t> words(bitmap_words(slots_));
  for (size_t i = 0; i < kEntries; ++i) {
    const Entry checkpoint = entry(i);
    if (checkpoint.number == 0) {
      given_[i] = checkpoint.is_whole() ? checkpoint.given : 0;
      continue;
    }
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kStorage, file_->path() + ": is damaged: " + what + " of checkpoint " +
                                           std::to_string(checkpoint.number) + " (entry " +
                                           std::to_string(i) + ") isn't what was written");
    };
    if (!checkpoint.is_whole() || checkpoint.given != checkpoint.number) refuse("the entry");
    std::memcpy(words.data(), file_->data() + shape_.region_offset(i), shape_.bitmap_bytes);
    uint64_t rows = 0;
    for (const uint64_t word : words) rows += static_cast<uint64_t>(std::popcount(word));
    const bool beyond = slots_ % 64 != 0 && (words.back() >> (slots_ % 64)) != 0;
    if (checkpoint.bitmap_checksum != crc32c(words.data(), shape_.bitmap_bytes) || beyond ||
        checkpoint.rows != rows) {
      refuse("the bitmap");
    }
    given_[i] = checkpoint.given;
    region_is_durable_[i] = true;
    found(i, checkpoint, words);
  }
}

uint64_t CheckpointTable::greatest_number() const { return *std::max_element(given_.begin(), given_.end()); }

size_t CheckpointTable::choose(const std::array<bool, kEntries>& is_used) const {
  // Not the one that remembers the greatest number. The one used last, whose bitmap differs least.
  const uint64_t greatest = greatest_number();
  size_t chosen = kEntries;
  for (size_t i = 0; i < kEntries; ++i) {
    if (is_used[i] || (greatest != 0 && given_[i] == greatest)) continue;
    if (chosen == kEntries || given_[i] > given_[chosen]) chosen = i;
  }
  return chosen;
}

template <class Words>
std::pair<uint32_t, uint64_t> CheckpointTable::write_region(size_t entry, Words word) {
  const bool was_durable = std::exchange(region_is_durable_[entry], false);
  const size_t offset = shape_.region_offset(entry);
  const size_t words = bitmap_words(slots_);
  uint32_t checksum = 0;
  uint64_t rows = 0;
  for (size_t first = 0; first < words; first += kWordsALine) {
    uint64_t line[kWordsALine] = {};
    const size_t count = std::min(kWordsALine, words - first);
    for (size_t i = 0; i < count; ++i) {
      line[i] = word(first + i);
      rows += static_cast<uint64_t>(std::popcount(line[i]));
    }
    checksum = crc32c(line, count * sizeof(uint64_t), checksum);
    const size_t at = offset + first * sizeof(uint64_t);
    if (was_durable && std::memcmp(file_->data() + at, line, sizeof line) == 0) continue;
    file_->write(at, line, sizeof line);
  }
  return {checksum, rows};
}

uint64_t CheckpointTable::commit(size_t i, uint64_t number, const std::array<uint8_t, 16>& id,
                                 const SlotBits& bits) {
  const auto [bitmap_checksum, rows] = write_region(i, [&bits](size_t word) { return bits.word(word); });
  Entry entry{};
  entry.given = number;
  entry.id = id;
  entry.rows = rows;
  entry.bitmap_checksum = bitmap_checksum;
  entry.checksum = entry.computed_checksum();
  file_->write(CheckpointsShape::entry_offset(i), &entry, sizeof entry);
  file_->settle(shape_.region_offset(i), shape_.region_bytes);
  file_->sync(CheckpointsShape::kTableOffset, CheckpointsShape::kTableBytes);
  region_is_durable_[i] = true;
  given_[i] = number;

  // Now it is there.
  file_->write_word(CheckpointsShape::entry_offset(i) + offsetof(Entry, number), number);
  try {
    sync_table();
  } catch (...) {
    file_->write_word(CheckpointsShape::entry_offset(i) + offsetof(Entry, number), 0);
    throw;
  }
  return rows;
}

void CheckpointTable::drop(size_t i) {
  file_->write_word(CheckpointsShape::entry_offset(i) + offsetof(Entry, number), 0);
  sync_table();
}

void CheckpointTable::copy_to(CheckpointTable& other) const {
  const size_t words = bitmap_words(slots_);
  for (size_t i = 0; i < kEntries; ++i) {
    Entry checkpoint = entry(i);
    if (checkpoint.number != 0) {
      const std::byte* const region = file_->data() + shape_.region_offset(i);
      checkpoint.bitmap_checksum =
          other
              .write_region(i,
                            [&](size_t word) {
                              uint64_t bits = 0;
                              if (word < words) std::memcpy(&bits, region + word * sizeof bits, sizeof bits);
                              return bits;
                            })
              .first;
      checkpoint.checksum = checkpoint.computed_checksum();
    }
    other.file_->write(CheckpointsShape::entry_offset(i), &checkpoint, sizeof checkpoint);
  }
  other.file_->settle(0, other.file_->size_bytes());
}

}  // namespace embstore::pool
