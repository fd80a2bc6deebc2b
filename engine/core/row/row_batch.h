// A batch of rows that was read from a tier, or will be written to one. It has one buffer for the headers of
// all rows, and one for their floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "memory/page_vector.h"
#include "row/place.h"
#include "row/row_header.h"
#include "row/row_layout.h"

namespace embstore {

class RowBatch {
 public:
  explicit RowBatch(const RowLayout& layout) : row_floats_(layout.row_floats()) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t row_floats() const { return row_floats_; }
  void clear() {
    size_ = 0;
    places_.clear();
    damaged_.clear();
  }
  // New rows have unspecified values, since the caller overwrites them. The batch keeps its memory when it
  // shrinks, since fresh pages are slow.
  void resize(size_t count) {
    size_ = count;
    if (count <= headers_.size()) return;
    headers_.resize(count);
    floats_.resize(count * row_floats_);
  }

  RowHeader& header(size_t i) { return headers_[i]; }
  const RowHeader& header(size_t i) const { return headers_[i]; }
  float* row(size_t i) { return floats_.data() + i * row_floats_; }
  const float* row(size_t i) const { return floats_.data() + i * row_floats_; }

  // --- Reading: the caller adds the places of rows, and Tier::read_rows() reads these rows.
  void add_place(const Place& place) { places_.push_back(place); }
  void set_places(std::span<const Place> places) { places_.assign(places.begin(), places.end()); }
  std::span<const Place> places() const { return places_; }
  // For tiers: makes room for the rows at places(), and marks none as damaged. are_whole: the tier will read
  // all of their floats.
  void start_reading(bool are_whole) {
    resize(places_.size());
    damaged_.clear();
    are_whole_ = are_whole;
  }
  bool are_whole() const { return are_whole_; }
  // Marks row i as damaged: the medium does not return what was written. `reason` names the file. One thread
  // at a time.
  void add_damaged(size_t i, std::string reason) { damaged_.insert_or_assign(i, std::move(reason)); }
  // The reason of each damaged row, by its position in the batch.
  const std::map<size_t, std::string>& damaged() const { return damaged_; }
  bool is_damaged(size_t i) const { return !damaged_.empty() && damaged_.contains(i); }

  // The bytes of the batch's rows and places.
  size_t size_bytes() const {
    return places_.size() * sizeof(Place) + size_ * (sizeof(RowHeader) + row_floats_ * sizeof(float));
  }
  // The bytes of all memory that the batch holds, used or not.
  size_t memory_bytes() const {
    return places_.capacity() * sizeof(Place) + headers_.capacity() * sizeof(RowHeader) +
           floats_.capacity() * sizeof(float);
  }

 private:
  size_t row_floats_;
  size_t size_ = 0;
  bool are_whole_ = true;
  PageVector<Place> places_;
  PageVector<RowHeader> headers_;  // size_ or more
  PageVector<float> floats_;
  std::map<size_t, std::string> damaged_;
};

}  // namespace embstore
