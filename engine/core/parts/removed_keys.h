// The keys that lost their row since the last save that succeeded: an incremental save tells of them, since the saves
// before may have rows of them. Of a table that was neither saved nor restored it keeps none: nothing has rows of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "memory/page_vector.h"

namespace embstore {

// Keeps each key once or twice however often its row comes and goes, and none that has a row again: an incremental save
// has that row, which is newer than what the saves before have. Guarded by its owner.
class RemovedKeys {
 public:
  // Notes keys whose rows go now. Keys that have none are not to be given: no save has to tell of them. has_row(key) is asked
  // of keys that were noted before.
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

  // What a save tells that has the table as it is now. A save that fails leaves all of them to the next one.
  template <class HasRow>
  std::span<const int64_t> tell(HasRow has_row) {
    may_be_saved_ = true;
    told_.insert(told_.end(), since_.begin(), since_.end());
    keep_each_once(told_, has_row);
    since_ = {};
    sorted_ = 0;
    return told_;
  }
  // The save succeeded. Keys that were noted after tell() are the next one's.
  void were_saved() { told_ = {}; }

  // The table is restored, after this.
  void begin_anew() {
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

  bool may_be_saved_ = false;  // rows of such keys
  PageVector<int64_t> told_;   // by the last save
  PageVector<int64_t> since_;  // since then
  size_t sorted_ = 0;          // of since_, when each key was there once
};

}  // namespace embstore
