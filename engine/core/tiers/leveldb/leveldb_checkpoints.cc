#include "tiers/leveldb/leveldb_checkpoints.h"

#include <algorithm>

namespace embstore {

std::vector<uint64_t> LevelDbCheckpoints::numbers() const {
  std::vector<uint64_t> numbers;
  for (const Entry& entry : entries_) numbers.push_back(entry.is.name.number);
  return numbers;
}

LevelDbCheckpoints::Entry* LevelDbCheckpoints::find(uint64_t number) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.is.name.number == number; });
  return found == entries_.end() ? nullptr : &*found;
}

const LevelDbCheckpoints::Entry* LevelDbCheckpoints::find(uint64_t number) const {
  return const_cast<LevelDbCheckpoints*>(this)->find(number);
}

void LevelDbCheckpoints::remove(uint64_t number) noexcept {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.is.name.number == number; });
}

std::optional<CheckpointSpan> LevelDbCheckpoints::needing(uint64_t sequence) const {
  for (const Entry& entry : entries_) {
    if (sequence < entry.is.sequence_end) {
      return CheckpointSpan{entry.is.name.number, entries_.back().is.name.number};
    }
  }
  return std::nullopt;
}

}  // namespace embstore
