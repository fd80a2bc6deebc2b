// The keys that lost their row since the last save that succeeded. An incremental save lists them, since
// earlier saves may have their rows. A table that was neither saved nor restored keeps none: no save has rows
// of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "memory/page_vector.h"

namespace embstore {

// Keeps each key once or twice, however often its row comes and goes, and no key that has a row again: an
// incremental save has that row, which is newer than what earlier saves have. Guarded by its owner.
class RemovedKeys {
 public:
  // Notes keys whose rows are removed now. The caller leaves out keys without a row: no save has to list
  // them. Calls has_row(key) for keys that were noted before.
  template <class HasRow>
  void note(std::span<const int64_t> keys, HasRow has_row) {
    if (!may_be_saved_) return;
    constexpr size_t kWorthSorting = 4096;
    if (since_.size() + keys.size() >= 2 * sorted_ + kWorthSorting) {
      keep_each_once(since_, has_row);
      sorted_ = since_.size();
    }
    since_.insert(since_.end(), keys.begin(), keys.end());
  }

  // Returns the keys that a save of the table as it is now lists. If that save fails, the next one lists them
  // again.
  template <class HasRow>
  std::span<const int64_t> list_for_save(HasRow has_row) {
    may_be_saved_ = true;
    listed_.insert(listed_.end(), since_.begin(), since_.end());
    keep_each_once(listed_, has_row);
    since_ = {};
    sorted_ = 0;
    return listed_;
  }
  // Forgets the listed keys, since their save succeeded. Keys noted after list_for_save() are left for the
  // next save.
  void save_succeeded() { listed_ = {}; }

  // Forgets all keys, since the table is restored after this.
  void reset() {
    *this = {};
    may_be_saved_ = true;
  }

 private:
  template <class HasRow>
  static void keep_each_once(PageVector<int64_t>& keys, HasRow has_row) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::erase_if(keys, std::ref(has_row));
  }

  bool may_be_saved_ = false;   // whether a save may have rows of removed keys
  PageVector<int64_t> listed_;  // listed by the last save
  PageVector<int64_t> since_;   // noted since then
  size_t sorted_ = 0;           // size of since_ when it last had each key once
};

}  // namespace embstore
