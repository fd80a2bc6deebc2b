// What keys without a row read: a table of rows made once, by the key, so that a value depends on neither order nor
// thread nor storage type.
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
  // `values`: rows of `dim` floats, at least one; key k starts as row k mod their number.
  // `no_permission_value`: what a key reads that waits for its row.
  InitialRows(std::vector<float> values, int dim, float no_permission_value)
      : dim_(dim),
        rows_(std::make_unique<Rows>(std::move(values), dim)),
        current_(rows_.get()),
        no_permission_(static_cast<size_t>(dim), no_permission_value) {}

  // The row stays there as long as the caller's guard of the epochs.
  const float* of(int64_t key) const {
    const Rows& rows = *current_.load(std::memory_order_acquire);
    int64_t row = key % rows.count;
    if (row < 0) row += rows.count;
    return rows.values.data() + row * dim_;
  }
  const float* no_permission() const { return no_permission_.data(); }

  // Neither is to be called by several threads at once.
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
