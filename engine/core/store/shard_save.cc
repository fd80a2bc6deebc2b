#include "store/shard_save.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace embstore {

void ShardSave::reserve(size_t keys) {
  const size_t needed = entries_.size() + reserved_ + keys;
  if (needed > entries_.capacity()) {
    const size_t capacity = std::max(needed, 2 * entries_.capacity());
    PageVector<uint32_t> table(std::bit_ceil(2 * capacity), 0);
    entries_.reserve(capacity);
    std::swap(table_, table);
    for (size_t i = 0; i < entries_.size(); ++i) link(i);
  }
  // Images that were taken free their space, so there are often fewer images than entries.
  const size_t images = images_.headers.size() + reserved_ + keys;
  if (keeps_ == Keeps::kImages && images > images_.headers.capacity()) {
    const size_t capacity = std::max(images, 2 * images_.headers.capacity());
    images_.floats.reserve(capacity * row_floats_);
    images_.headers.reserve(capacity);
  }
  reserved_ += keys;
}

void ShardSave::keep(const RowHeader& header, const float* floats) noexcept {
  if (keeps_ == Keeps::kKeys) return add(header.key, kNoImage);
  add(header.key, static_cast<uint32_t>(images_.headers.size()));
  images_.headers.push_back(header);
  images_.floats.insert(images_.floats.end(), floats, floats + row_floats_);
  memory_.add(sizeof(RowHeader) + row_floats_ * sizeof(float));
}

void ShardSave::add(int64_t key, uint32_t image) noexcept {
  entries_.push_back({key, image});
  link(entries_.size() - 1);
}

void ShardSave::link(size_t entry) noexcept {
  size_t probe = hash_key(entries_[entry].key) & (table_.size() - 1);
  while (table_[probe] != 0) probe = (probe + 1) & (table_.size() - 1);
  table_[probe] = static_cast<uint32_t>(entry + 1);
}

const ShardSave::Entry* ShardSave::find(int64_t key) const {
  if (table_.empty()) return nullptr;
  size_t probe = hash_key(key) & (table_.size() - 1);
  while (table_[probe] != 0 && entries_[table_[probe] - 1].key != key)
    probe = (probe + 1) & (table_.size() - 1);
  return table_[probe] == 0 ? nullptr : &entries_[table_[probe] - 1];
}

ShardSave::Known ShardSave::known(int64_t key) const {
  const Entry* const entry = keeps_ == Keeps::kImages ? find(key) : nullptr;
  if (entry == nullptr) return {};
  if (entry->image == kNoImage) return {.is_known = true};
  return {.is_known = true,
          .header = &images_.headers[entry->image],
          .floats = images_.floats.data() + entry->image * row_floats_};
}

std::vector<int64_t> ShardSave::keys() const {
  std::vector<int64_t> keys(entries_.size());
  std::transform(entries_.begin(), entries_.end(), keys.begin(),
                 [](const Entry& entry) { return entry.key; });
  return keys;
}

ShardSave::Images ShardSave::take_images() {
  Images fresh;
  fresh.headers.reserve(reserved_);
  fresh.floats.reserve(reserved_ * row_floats_);
  std::swap(images_, fresh);
  memory_.remove(bytes_of(fresh));
  for (Entry& entry : entries_) entry.image = kNoImage;
  // Drops the images below the hash: the save has already written those rows, from their places or from the
  // images.
  size_t kept = 0;
  for (size_t i = 0; i < fresh.headers.size(); ++i) {
    if (sort_hash(hash_key(fresh.headers[i].key)) < written_below_) continue;
    fresh.headers[kept] = fresh.headers[i];
    std::copy_n(fresh.floats.data() + i * row_floats_, row_floats_, fresh.floats.data() + kept * row_floats_);
    ++kept;
  }
  fresh.headers.resize(kept);
  return fresh;
}

}  // namespace embstore
