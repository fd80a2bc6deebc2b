// The initial values of rows, which keys without a row read. They come from a fixed list of rows, chosen by
// the key, so that they depend on neither order nor thread nor storage type.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "threads/epochs.h"

namespace embstore {

class InitialRows {
 public:
  // `values`: rows of `dim` floats, at least one; key k starts with row k modulo the number of rows.
  // `no_permission_value`: the value that a key reads while a filter denies it a row.
  InitialRows(std::vector<float> values, int dim, float no_permission_value)
      : dim_(dim),
        rows_(std::make_unique<Rows>(std::move(values), dim)),
        current_(rows_.get()),
        no_permission_(static_cast<size_t>(dim), no_permission_value) {}

  // The returned row lives as long as the caller's guard of the epochs.
  const float* row_of(int64_t key) const {
    const Rows& rows = *current_.load(std::memory_order_acquire);
    int64_t row = key % rows.count;
    if (row < 0) row += rows.count;
    return rows.values.data() + row * dim_;
  }
  const float* no_permission() const { return no_permission_.data(); }

  // Only one thread may call these three functions at a time.
  std::span<const float> values() const { return rows_->values; }
  bool were_replaced() const { return were_replaced_; }
  void replace(std::vector<float> values, Epochs& epochs) {
    if (values == rows_->values) return;
    were_replaced_ = true;
    auto rows = std::make_unique<Rows>(std::move(values), dim_);
    current_.store(rows.get(), std::memory_order_release);
    std::swap(rows_, rows);
    epochs.retire(std::move(rows));
  }

 private:
  struct Rows final : Retirable {
    Rows(std::vector<float> some, int64_t dim)
        : values(std::move(some)), count(static_cast<int64_t>(values.size()) / dim) {}
    const std::vector<float> values;
    const int64_t count;
  };

  const int64_t dim_;
  std::unique_ptr<Rows> rows_;
  std::atomic<const Rows*> current_;
  bool were_replaced_ = false;
  const std::vector<float> no_permission_;
};

}  // namespace embstore
