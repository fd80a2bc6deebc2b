// Sets of records, one bit each: record r is bit r % 64 of word r / 64.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/huge_pages.h"

namespace embstore::log {

// A constant set, as manifests store it.
using RowWords = std::vector<uint64_t>;

constexpr size_t words_for(uint64_t records) { return (records + 63) / 64; }
inline bool contains(std::span<const uint64_t> words, uint64_t record) {
  return record / 64 < words.size() && (words[record / 64] >> (record % 64) & 1) != 0;
}
inline uint64_t count_rows(std::span<const uint64_t> words) {
  uint64_t rows = 0;
  for (const uint64_t word : words) rows += static_cast<uint64_t>(std::popcount(word));
  return rows;
}
// Returns the last record of the set plus 1; 0 for an empty set.
inline uint64_t end_of_rows(std::span<const uint64_t> words) {
  for (size_t i = words.size(); i > 0; --i) {
    if (words[i - 1] != 0) return i * 64 - static_cast<size_t>(std::countl_zero(words[i - 1]));
  }
  return 0;
}
// Calls visit(record) for each bit that is set in the word, whose lowest bit is record `first`.
template <class Visit>
void for_each_row(uint64_t word, uint64_t first, Visit visit) {
  for (; word != 0; word &= word - 1) visit(first + static_cast<uint64_t>(std::countr_zero(word)));
}

// Bits that several threads change at once: one set, or several whose words follow each other.
class RowBits {
 public:
  explicit RowBits(uint64_t records) {
    const size_t words = words_for(records);
    if (words * sizeof(uint64_t) < kMinPages) {
      short_ = std::make_unique<Word[]>(words);
      words_ = short_.get();
    } else {
      long_.emplace(words);
      words_ = long_->data();
    }
  }

  uint64_t word(size_t i) const { return words_[i].load(std::memory_order_acquire); }
  void set_word(size_t i, uint64_t bits) { words_[i].store(bits, std::memory_order_release); }

  bool contains(uint64_t record) const { return (word(record / 64) >> (record % 64) & 1) != 0; }
  void add(uint64_t record) { words_[record / 64].fetch_or(bit(record), std::memory_order_acq_rel); }
  // Returns false if it wasn't in the set.
  bool remove(uint64_t record) {
    return (words_[record / 64].fetch_and(~bit(record), std::memory_order_acq_rel) & bit(record)) != 0;
  }
  // assign() sets `count` words from `first` on to those of `from`, then zeros; copy() returns them.
  // REQUIRES, for a set of one moment: no thread changes it meanwhile.
  void assign(size_t first, size_t count, std::span<const uint64_t> from) {
    for (size_t i = 0; i < count; ++i) set_word(first + i, i < from.size() ? from[i] : 0);
  }
  RowWords copy(size_t first, size_t count) const {
    RowWords copied(count);
    for (size_t i = 0; i < count; ++i) copied[i] = word(first + i);
    return copied;
  }

 private:
  using Word = std::atomic<uint64_t>;
  // Shorter sets don't have pages of their own: there may be one for each of many files, and the system
  // allows a process some tens of thousands of page ranges.
  static constexpr size_t kMinPages = size_t{32} << 10;

  static uint64_t bit(uint64_t record) { return uint64_t{1} << (record % 64); }

  std::unique_ptr<Word[]> short_;
  std::optional<PageArray<Word>> long_;
  Word* words_;
};

}  // namespace embstore::log
