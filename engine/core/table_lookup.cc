// The read path of a table.
#include <algorithm>
#include <array>

#include "prefetch.h"
#include "row_copy.h"
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
  thread_local NotInFirstTier others;
  others.lower.clear();
  others.absent.clear();
  uint64_t hits = 0;
  switch (layout_.dim()) {
    case 4: hits = lookup_rows<4>(ids, out, others); break;
    case 8: hits = lookup_rows<8>(ids, out, others); break;
    case 16: hits = lookup_rows<16>(ids, out, others); break;
    case 32: hits = lookup_rows<32>(ids, out, others); break;
    case 64: hits = lookup_rows<64>(ids, out, others); break;
    case 128: hits = lookup_rows<128>(ids, out, others); break;
    default: hits = lookup_rows<0>(ids, out, others); break;
  }
  hits_.fetch_add(hits, std::memory_order_relaxed);
  misses_.fetch_add(ids.size() - hits, std::memory_order_relaxed);
  if (!mover_) return;
  const uint64_t stamp = train ? 0 : clock_.begin_batch();
  Positions& excepted = others.absent;  // from being counted
  if (!others.lower.empty()) {
    lookup_lower(ids, out, others.lower, stamp, train ? nullptr : &excepted);
    std::sort(excepted.begin(), excepted.end());
  }
  if (!train) mover_->count_served(ids, excepted, stamp);
}

// Three stages, so that no id waits for its own cache misses: an id's bucket is fetched kAhead ids before
// it is probed, and its row as many before it is copied. Per id rather than in blocks: evenly spread, the
// fetches of one id overlap with the work on others, and a long row's lines don't queue up.
template <int kDim>
uint64_t Table::lookup_rows(std::span<const int64_t> ids, float* out,
                            NotInFirstTier& others) const {
  constexpr size_t kAhead = 16;
  const size_t dim = kDim != 0 ? kDim : static_cast<size_t>(layout_.dim());
  const size_t count = ids.size();
  const MemoryTier& tier = tiers_->first();
  IndexReader reader(*index_);
  std::array<KeyHash, kAhead> hashes;
  std::array<Found, kAhead> found;
  uint64_t hits = 0;

  const auto copy = [&](size_t i, Found entry) {
    float* const target = out + i * dim;
    for (;;) {
      if (!entry.ref) {
        copy_initial_value(hash_key(ids[i]), ids[i], target);
        others.absent.push_back(static_cast<uint32_t>(i));
        return;
      }
      if (entry.ref.tier() != 0) [[unlikely]] {
        others.lower.push_back(static_cast<uint32_t>(i));
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
      if (found[place].ref) prefetch_row(tier.row(found[place].ref.slot()), dim);
    }
    if (i < count) {
      hashes[place] = hash_key(ids[i]);
      reader.prefetch(hashes[place]);
    }
  }
  return hits;
}

// Tier by tier and in batches.
void Table::lookup_lower(std::span<const int64_t> ids, float* out, Positions& lower, uint64_t stamp,
                         Positions* counted) const {
  const bool promote = counted != nullptr;
  const std::shared_lock gate = promote ? enter_gate() : std::shared_lock<std::shared_mutex>();
  const size_t dim = static_cast<size_t>(layout_.dim());
  std::sort(lower.begin(), lower.end(), [&ids](uint32_t a, uint32_t b) { return ids[a] < ids[b]; });
  StagedRows staged(layout_);
  Positions again;
  std::vector<size_t> promoted;
  while (!lower.empty()) {
    again.clear();
    for (size_t next = 0; next < lower.size();) {
      // A run of positions, each key read once; a row's tag is its key's first position.
      IndexReader reader(*index_);
      staged.clear();
      size_t end = next;
      for (; end < lower.size() && staged.size() < mover_->largest_claim(); ++end) {
        const int64_t key = ids[lower[end]];
        if (end != next && key == ids[lower[end - 1]]) continue;
        const KeyHash hash = hash_key(key);
        Found found = reader.find(hash, key);
        if (found.ref && found.ref.tier() != 0) {
          staged.add(key, hash, found, end);
          continue;
        }
        // It came to the first tier meanwhile, or is gone.
        float* const target = out + lower[end] * dim;
        while (found.ref && found.ref.tier() == 0) {
          copy_row<0>(target, tiers_->first().row(found.ref.slot()), static_cast<int>(dim));
          if (found.holds()) break;
          found = reader.find(hash, key);
        }
        if (!found.ref) copy_initial_value(hash, key, target);
        if (found.ref && found.ref.tier() != 0) {
          again.push_back(lower[end]);
          continue;
        }
        for (size_t i = end + 1; i < lower.size() && ids[lower[i]] == key; ++i) {
          std::copy_n(target, dim, out + lower[i] * dim);
        }
      }
      // The last key's other positions belong to this run too.
      while (end < lower.size() && end != next && ids[lower[end]] == ids[lower[end - 1]]) ++end;
      staged.read(*tiers_);
      for (size_t i = 0; i < staged.size(); ++i) {
        const size_t first = staged.entry(i).tag;
        const int64_t key = staged.entry(i).key;
        const bool holds = staged.holds(i);
        size_t k = first;
        uint32_t last = 0;
        for (; k < end && ids[lower[k]] == key; ++k) {
          last = std::max(last, lower[k]);
          if (holds) {
            std::copy_n(staged.row(i), dim, out + lower[k] * dim);
          } else {
            again.push_back(lower[k]);
          }
        }
        // At once, so that a row that has just come isn't taken for colder than it is.
        staged.count_served(i, k - first, stamp + last);
      }
      if (promote && !staged.empty()) {
        Mover::Claim claim = mover_->claim(staged.size());
        promoted.clear();
        mover_->promote(staged, claim, &promoted);  // one that changed meanwhile comes when it's counted
        for (const size_t i : promoted) {
          const size_t first = staged.entry(i).tag;
          for (size_t k = first; k < end && ids[lower[k]] == staged.entry(i).key; ++k) {
            counted->push_back(lower[k]);
          }
        }
      }
      next = end;
    }
    lower.swap(again);
  }
  if (promote) mover_->rows_came();
}

}  // namespace embstore
