// Which checkpoints a table of a LevelDB database has, and which records they need.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "row/place.h"
#include "tiers/leveldb/erased_places.h"
#include "tiers/leveldb/leveldb_checkpoint_records.h"

namespace embstore {

// Not safe for threads.
class LevelDbCheckpoints {
 public:
  struct Entry {
    LevelDbCheckpoint is;
    // Until it's committed; the records have them then.
    std::shared_ptr<std::vector<Place>> dead;
    bool is_pending() const { return dead != nullptr; }
  };

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& all() const { return entries_; }  // ascending
  std::vector<uint64_t> numbers() const;
  Entry* find(uint64_t number);
  const Entry* find(uint64_t number) const;
  void add(Entry entry) { entries_.push_back(std::move(entry)); }
  void remove(uint64_t number) noexcept;

  // Greater than the sequence number of any record that one of them has.
  uint64_t sequence_end() const { return entries_.empty() ? 0 : entries_.back().is.sequence_end; }
  // Those that may need the record with this sequence number, which is live up to now.
  std::optional<CheckpointSpan> needing(uint64_t sequence) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace embstore
