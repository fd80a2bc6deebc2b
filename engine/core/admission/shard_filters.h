// The admission filters of a table, one per shard; none if every key is admitted.
#pragma once

#include <array>
#include <memory>

#include "admission/admission_filter.h"
#include "row/key_hash.h"

namespace embstore {

class ShardFilters {
 public:
  explicit ShardFilters(const FilterSpec& spec) {
    for (auto& filter : filters_) filter = make_filter(spec);
  }

  bool any() const { return filters_.front() != nullptr; }
  // Returns the filter of the key's shard; null if every key is admitted. Guarded by the shard's
  // mutex: see AdmissionFilter.
  AdmissionFilter* filter_of(int64_t key) const {
    return filters_[static_cast<size_t>(shard_of_key(key))].get();
  }
  AdmissionFilter* shard(int number) const { return filters_[static_cast<size_t>(number)].get(); }
  // The shape of each shard's sketch; empty if filters keep none.
  SketchShape sketch_shape() const { return any() ? filters_.front()->sketch_shape() : SketchShape{}; }

 private:
  std::array<std::unique_ptr<AdmissionFilter>, kShards> filters_;
};

}  // namespace embstore
