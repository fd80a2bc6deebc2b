// Places of erased rows whose records are still in the database: those that no checkpoint needs, and those that wait
// until the checkpoints that need them are dropped. 16 bytes a place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row/place.h"

namespace embstore {

// Numbers of checkpoints: no other than those from `first` to `last` can need a place.
struct CheckpointSpan {
  uint64_t first;
  uint64_t last;
  bool operator==(const CheckpointSpan&) const = default;
};

// Not safe for threads. What adds a place throws std::bad_alloc, and has changed nothing then.
class ErasedPlaces {
 public:
  void add_deletable(const Place& place) { deletable_.push_back(place); }
  void add_deletable(std::vector<Place>& places);  // takes them all: `places` is empty then
  void take(ErasedPlaces& others);                 // all that they have; where it throws, some
  void keep_back(const Place& place, const CheckpointSpan& needed_by);

  // Makes those deletable that none of the checkpoints `numbers` can need.
  void release_but_for(const std::vector<uint64_t>& numbers);
  // How many would be, and are.
  size_t deletable_but_for(const std::vector<uint64_t>& numbers) const;

  const std::vector<Place>& deletable() const { return deletable_; }
  void forget_deletable(size_t count);  // the last ones: they're deleted
  // Every place.
  std::vector<Place> all() const;

 private:
  struct Group {
    CheckpointSpan needed_by;
    std::vector<Place> places;
  };
  static bool is_needed(const Group& group, const std::vector<uint64_t>& numbers);

  std::vector<Place> deletable_;
  std::vector<Group> kept_back_;  // as many as pairs of checkpoints, at most
};

}  // namespace embstore
