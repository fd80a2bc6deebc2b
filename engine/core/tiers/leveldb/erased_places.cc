#include "tiers/leveldb/erased_places.h"

#include <algorithm>
#include <utility>

namespace embstore {

void ErasedPlaces::add_deletable(std::vector<Place>& places) {
  if (deletable_.empty()) {
    deletable_.swap(places);
    return;
  }
  deletable_.insert(deletable_.end(), places.begin(), places.end());
  places.clear();
}

void ErasedPlaces::keep_back(const Place& place, const CheckpointSpan& needed_by) {
  // Most go where the last one went.
  const auto group = std::find_if(kept_back_.rbegin(), kept_back_.rend(),
                                  [&](const Group& some) { return some.needed_by == needed_by; });
  if (group != kept_back_.rend()) {
    group->places.push_back(place);
  } else {
    kept_back_.push_back({needed_by, {place}});
  }
}

void ErasedPlaces::take(ErasedPlaces& others) {
  add_deletable(others.deletable_);
  for (Group& theirs : others.kept_back_) {
    const auto group = std::find_if(kept_back_.begin(), kept_back_.end(),
                                    [&](const Group& some) { return some.needed_by == theirs.needed_by; });
    if (group == kept_back_.end()) {
      kept_back_.push_back(std::move(theirs));
    } else {
      group->places.insert(group->places.end(), theirs.places.begin(), theirs.places.end());
    }
  }
  others.kept_back_.clear();
}

void ErasedPlaces::release_but_for(const std::vector<uint64_t>& numbers) {
  for (Group& group : kept_back_) {
    if (!is_needed(group, numbers)) add_deletable(group.places);
  }
  std::erase_if(kept_back_, [](const Group& group) { return group.places.empty(); });
}

size_t ErasedPlaces::deletable_but_for(const std::vector<uint64_t>& numbers) const {
  size_t count = deletable_.size();
  for (const Group& group : kept_back_) {
    if (!is_needed(group, numbers)) count += group.places.size();
  }
  return count;
}

void ErasedPlaces::forget_deletable(size_t count) {
  deletable_.resize(deletable_.size() - count);
  if (deletable_.empty()) std::vector<Place>().swap(deletable_);
}

std::vector<Place> ErasedPlaces::all() const {
  size_t count = deletable_.size();
  for (const Group& group : kept_back_) count += group.places.size();
  std::vector<Place> places;
  places.reserve(count);
  places.insert(places.end(), deletable_.begin(), deletable_.end());
  for (const Group& group : kept_back_) {
    places.insert(places.end(), group.places.begin(), group.places.end());
  }
  return places;
}

bool ErasedPlaces::is_needed(const Group& group, const std::vector<uint64_t>& numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [&](uint64_t number) {
    return group.needed_by.first <= number && number <= group.needed_by.last;
  });
}

}  // namespace embstore
