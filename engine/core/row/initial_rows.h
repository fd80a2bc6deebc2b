// What keys without a row read: a table of rows made once, by the key, so that a value depends on neither order nor
// thread nor storage type.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace embstore {

class InitialRows {
 public:
  // `values`: rows of `dim` floats, at least one; key k starts as row k mod their number.
  // `no_permission_value`: what a key reads that waits for its row.
  InitialRows(std::vector<float> values, int dim, float no_permission_value)
      : values_(std::move(values)),
        dim_(dim),
        count_(static_cast<int64_t>(values_.size()) / dim),
        no_permission_(static_cast<size_t>(dim), no_permission_value) {}

  const float* of(int64_t key) const {
    int64_t row = key % count_;
    if (row < 0) row += count_;
    return values_.data() + row * dim_;
  }
  const float* no_permission() const { return no_permission_.data(); }

 private:
  const std::vector<float> values_;
  const int64_t dim_;
  const int64_t count_;
  const std::vector<float> no_permission_;
};

}  // namespace embstore
