#include "lookup/look_up.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "errors/error.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

// Ids that are found before their rows are copied: what is known of them stays in the first-level cache.
constexpr size_t kIdsABlock = 512;
// An id's bucket is fetched so many ids before it is probed.
constexpr size_t kBucketsFetchedAhead = 16;

}  // namespace

void LookUp::copy_initial_value(KeyHash hash, int64_t key, float* out) const {
  const AdmissionFilter* const filter = filters_.of(hash);
  const bool waits = filter != nullptr && !filter->admits(key, hash);
  std::copy_n(waits ? initial_.no_permission() : initial_.of(key), store_.layout().dim(), out);
}

uint64_t LookUp::read_first_tier(std::span<const int64_t> ids, float* out, StagedRows& lower,
                                 RowRef* refs) const {
  const auto dim = static_cast<size_t>(store_.layout().dim());
  const RowArray& rows = store_.tiers().first().rows();
  IndexReader reader(store_.index());
  std::array<KeyHash, kBucketsFetchedAhead> hashes;
  std::array<RowArray::SeenRow, kIdsABlock> seen;
  size_t seen_count = 0;
  // Ids without a row, where a filter is to be asked: fetched for all of a block first.
  std::array<size_t, kIdsABlock> absent;
  size_t absent_count = 0;
  const bool is_filtered = filters_.any();
  uint64_t hits = 0;
  std::vector<size_t> changed;

  const auto take = [&](size_t i, KeyHash hash) {
    const IndexHit hit = reader.find(hash, ids[i]);
    if (refs != nullptr) refs[i] = hit.ref;
    if (!hit.ref && is_filtered) {
      filters_.of(hash)->prefetch_admits(hash);
      absent[absent_count++] = i;
    } else if (!hit.ref) {
      copy_initial_value(hash, ids[i], out + i * dim);
    } else if (hit.ref.tier() != 0) [[unlikely]] {
      lower.add(ids[i], hash, hit, i);
    } else {
      seen[seen_count++] = {&hit.bucket->guard, hit.state, hit.ref.slot(), i};
    }
  };
  const auto gather = [&] {
    hits += seen_count;
    rows.gather(std::span(seen).first(seen_count), out, [&](const RowArray::SeenRow& row) {
      changed.push_back(row.position);
      --hits;
    });
    seen_count = 0;
    for (size_t a = 0; a < absent_count; ++a) {
      copy_initial_value(hash_key(ids[absent[a]]), ids[absent[a]], out + absent[a] * dim);
    }
    absent_count = 0;
  };

  for (size_t i = 0; i < std::min(kBucketsFetchedAhead, ids.size()); ++i) {
    hashes[i] = hash_key(ids[i]);
    reader.prefetch(hashes[i]);
  }
  for (size_t first = 0; first < ids.size(); first += kIdsABlock) {
    const size_t end = std::min(first + kIdsABlock, ids.size());
    for (size_t i = first; i < end; ++i) {
      const KeyHash hash = hashes[i % kBucketsFetchedAhead];
      if (i + kBucketsFetchedAhead < ids.size()) {
        const KeyHash ahead = hash_key(ids[i + kBucketsFetchedAhead]);
        hashes[i % kBucketsFetchedAhead] = ahead;
        reader.prefetch(ahead);
      }
      take(i, hash);
    }
    gather();
    while (!changed.empty()) [[unlikely]] {
      const std::vector<size_t> again = std::exchange(changed, {});
      for (const size_t i : again) take(i, hash_key(ids[i]));
      gather();
    }
  }
  return hits;
}

void LookUp::read_lower(float* out, StagedRows& lower, RowPart part) const {
  constexpr size_t kRowsAhead = 8;
  const auto dim = static_cast<size_t>(store_.layout().dim());
  lower.read(store_.tiers(), part);
  IndexReader reader(store_.index());
  std::vector<int64_t> damaged;
  std::string first_damage;
  for (size_t i = 0; i < lower.size(); ++i) {
    if (i + kRowsAhead < lower.size()) prefetch_line(lower.wanted(i + kRowsAhead).hit.bucket);
    const auto& [key, hash, hit, position] = lower.wanted(i);
    std::string damage;
    // A neighbour's change voids what was found, not the row.
    if (lower.holds(i) || lower.holds_at(i, reader.find(hash, key).ref, store_.tiers())) {
      if (!lower.is_damaged(i)) {
        std::copy_n(lower.row(i), dim, out + position * dim);
        continue;
      }
      damage = lower.damage(i);
    } else if (read_one(key, out + position * dim, damage)) {  // it moved meanwhile
      continue;
    }
    damaged.push_back(key);
    if (first_damage.empty()) first_damage = damage;
  }
  if (!damaged.empty()) throw DamagedRowsError(std::move(damaged), first_damage);
}

bool LookUp::read_one(int64_t key, float* out, std::string& damage) const {
  const KeyHash hash = hash_key(key);
  IndexReader reader(store_.index());
  StagedRows staged(store_.layout());
  for (;;) {
    staged.start(store_.tiers());
    const IndexHit hit = reader.find(hash, key);
    if (!hit.ref) {
      copy_initial_value(hash, key, out);
      return true;
    }
    if (hit.ref.tier() == 0) {
      const RowArray::SeenRow seen{&hit.bucket->guard, hit.state, hit.ref.slot(), 0};
      bool is_whole = true;
      store_.tiers().first().rows().gather({&seen, 1}, out,
                                           [&is_whole](const RowArray::SeenRow&) { is_whole = false; });
      if (is_whole) return true;
      continue;
    }
    staged.add(key, hash, hit, 0);
    staged.read(store_.tiers(), RowPart::kWeights);
    if (!staged.holds(0)) continue;
    if (staged.is_damaged(0)) {
      damage = staged.damage(0);
      return false;
    }
    std::copy_n(staged.row(0), store_.layout().dim(), out);
    return true;
  }
}

}  // namespace embstore
