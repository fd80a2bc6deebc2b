// The read path of a table.
#include <algorithm>
#include <array>

#include "platform/prefetch.h"
#include "row/row_copy.h"
#include "table.h"

namespace embstore {

const float* Table::default_row(int64_t key) const {
  int64_t row = key % default_row_count_;
  if (row < 0) row += default_row_count_;
  return default_values_.data() + row * layout_.dim();
}

void Table::copy_initial_value(KeyHash hash, int64_t key, float* out) const {
  const AdmissionFilter* const filter = filter_of(hash);
  const bool waits = filter != nullptr && !filter->admits(key, hash);
  std::copy_n(waits ? no_permission_row_.data() : default_row(key), layout_.dim(), out);
}

void Table::lookup(std::span<const int64_t> ids, float* out, bool train) const {
  const Operation operation(*this);
  if (!mover_) {
    StagedRows none(layout_);
    const uint64_t hits = lookup_first_tier<false>(ids, out, none, nullptr);
    hits_.fetch_add(hits, std::memory_order_relaxed);
    misses_.fetch_add(ids.size() - hits, std::memory_order_relaxed);
    return;
  }
  ServedBatch batch = mover_->take_spare_batch();
  batch.lower.start(*tiers_);
  uint64_t hits = 0;
  if (train) {
    hits = lookup_first_tier<false>(ids, out, batch.lower, nullptr);
  } else {
    batch.first_stamp = clock_.begin_batch();
    batch.ids.assign(ids.begin(), ids.end());
    batch.refs.resize(ids.size());
    hits = lookup_first_tier<true>(ids, out, batch.lower, batch.refs.data());
  }
  hits_.fetch_add(hits, std::memory_order_relaxed);
  misses_.fetch_add(ids.size() - hits, std::memory_order_relaxed);
  if (!batch.lower.empty()) lookup_lower(out, batch.lower, train ? RowPart::kWeights : RowPart::kAll);
  if (train) {
    mover_->recycle(std::move(batch));
  } else {
    mover_->count_served(std::move(batch));
  }
}

template <bool kNoted>
uint64_t Table::lookup_first_tier(std::span<const int64_t> ids, float* out, StagedRows& lower,
                                  RowRef* refs) const {
  switch (layout_.dim()) {
    case 4: return lookup_rows<4, kNoted>(ids, out, lower, refs);
    case 8: return lookup_rows<8, kNoted>(ids, out, lower, refs);
    case 16: return lookup_rows<16, kNoted>(ids, out, lower, refs);
    case 32: return lookup_rows<32, kNoted>(ids, out, lower, refs);
    case 64: return lookup_rows<64, kNoted>(ids, out, lower, refs);
    case 128: return lookup_rows<128, kNoted>(ids, out, lower, refs);
    default: return lookup_rows<0, kNoted>(ids, out, lower, refs);
  }
}

// Three stages, so that no id waits for its own cache misses: an id's bucket is fetched kAhead ids before
// it is probed, and its row as many before it is copied. Per id rather than in blocks: evenly spread, the
// fetches of one id overlap with the work on others, and a long row's lines don't queue up.
template <int kDim, bool kNoted>
uint64_t Table::lookup_rows(std::span<const int64_t> ids, float* out, StagedRows& lower, RowRef* refs) const {
  constexpr size_t kAhead = 16;
  const size_t dim = kDim != 0 ? kDim : static_cast<size_t>(layout_.dim());
  const size_t count = ids.size();
  const MemoryTier& tier = tiers_->first();
  IndexReader reader(*index_);
  std::array<KeyHash, kAhead> hashes;
  std::array<IndexHit, kAhead> found;
  uint64_t hits = 0;

  const auto copy = [&](size_t i, IndexHit entry) {
    float* const target = out + i * dim;
    for (;;) {
      if constexpr (kNoted) refs[i] = entry.ref;
      if (!entry.ref) {
        copy_initial_value(hash_key(ids[i]), ids[i], target);
        return;
      }
      if (entry.ref.tier() != 0) [[unlikely]] {
        lower.add(ids[i], hash_key(ids[i]), entry, i);
        return;
      }
      copy_row<kDim>(target, tier.row(entry.ref.slot()), static_cast<int>(dim));
      if (entry.holds()) [[likely]] {
        ++hits;
        return;
      }
      entry = reader.find(hash_key(ids[i]), ids[i]);
    }
  };

  for (size_t i = 0; i < count + 2 * kAhead; ++i) {
    const size_t place = i % kAhead;
    if (i >= 2 * kAhead) copy(i - 2 * kAhead, found[place]);
    if (i >= kAhead && i - kAhead < count) {
      found[place] = reader.find(hashes[place], ids[i - kAhead]);
      if (const RowRef ref = found[place].ref; ref && ref.tier() == 0) {
        prefetch_row(tier.row(ref.slot()), dim);
      }
    }
    if (i < count) {
      hashes[place] = hash_key(ids[i]);
      reader.prefetch(hashes[place]);
    }
  }
  return hits;
}

// Tier by tier and in one batch each.
void Table::lookup_lower(float* out, StagedRows& lower, RowPart part) const {
  constexpr size_t kAhead = 8;
  const size_t dim = static_cast<size_t>(layout_.dim());
  lower.read(*tiers_, part);
  IndexReader reader(*index_);
  for (size_t i = 0; i < lower.size(); ++i) {
    if (i + kAhead < lower.size()) prefetch_line(lower.entry(i + kAhead).found.bucket);
    const auto& [key, hash, found, position] = lower.entry(i);
    // A neighbour's change voids what was found, not the row.
    if (lower.holds(i) || lower.holds_at(i, reader.find(hash, key).ref, *tiers_)) {
      std::copy_n(lower.row(i), dim, out + position * dim);
    } else {
      lookup_row(key, out + position * dim);  // it moved meanwhile
    }
  }
}

void Table::lookup_row(int64_t key, float* out) const {
  const size_t dim = static_cast<size_t>(layout_.dim());
  const KeyHash hash = hash_key(key);
  IndexReader reader(*index_);
  StagedRows staged(layout_);
  for (;;) {
    const IndexHit found = reader.find(hash, key);
    if (!found.ref) {
      copy_initial_value(hash, key, out);
      return;
    }
    if (found.ref.tier() == 0) {
      copy_row<0>(out, tiers_->first().row(found.ref.slot()), static_cast<int>(dim));
      if (found.holds()) return;
      continue;
    }
    staged.start(*tiers_);
    staged.add(key, hash, found, 0);
    staged.read(*tiers_, RowPart::kWeights);
    if (staged.holds(0)) {
      std::copy_n(staged.row(0), dim, out);
      return;
    }
  }
}

}  // namespace embstore
