#include "lookup/look_up.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "access/phase.h"
#include "errors/error.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

// Buckets are fetched this many ids before they are searched: twice as far ahead as rows are, since a search
// that waits for its bucket holds up the fetches of all rows behind it.
constexpr size_t kBucketsFetchedAhead = 32;

// The number of ids that a filter is asked about one after the other.
constexpr size_t kAskedAtOnce = 64;

// A batch whose rows go one after the other.
struct InOrder {
  size_t place(size_t i) const { return i; }
  size_t number(size_t place) const { return place; }
};
// A batch whose rows go to ascending places.
struct AtPlaces {
  std::span<const uint32_t> places;

  size_t place(size_t i) const { return places[i]; }
  size_t number(size_t place) const {
    return static_cast<size_t>(std::lower_bound(places.begin(), places.end(), place) - places.begin());
  }
};

// A gather that also notes the addresses of the rows for the phase.
template <class Gather>
class TracedGather {
 public:
  TracedGather(Gather& gather, Phase& phase, const MemoryTier& tier, size_t row_bytes)
      : gather_(gather), phase_(phase), tier_(tier), row_bytes_(row_bytes) {}

  void add(const SeenRow& row) {
    phase_.touch(tier_.meter(), Access::kLoad, row_bytes_, tier_.rows().row(row.slot));
    gather_.add(row);
  }
  void finish() { gather_.finish(); }

 private:
  Gather& gather_;
  Phase& phase_;
  const MemoryTier& tier_;
  const size_t row_bytes_;
};

// Rows that were written while they were copied. Out of line, since there are few.
struct ChangedRows {
  std::vector<size_t> places;  // of rows that have to be found again
  uint64_t noted = 0;

  [[gnu::noinline, gnu::cold]] void note(size_t place) {
    places.push_back(place);
    ++noted;
  }
};

}  // namespace

void LookUp::copy_initial_value(KeyHash hash, int64_t key, float* out) const {
  const AdmissionFilter* const filter = filters_.filter_of(key);
  const bool waits = filter != nullptr && !filter->admits(key, hash);
  std::copy_n(waits ? initial_.no_permission() : initial_.row_of(key), store_.layout().dim(), out);
}

uint64_t LookUp::read_first_tier(std::span<const int64_t> ids, const RowsOut& out, BatchInFlight* lower,
                                 RowRef* refs) const {
  if (out.places.empty()) return read_first_tier(ids, out.rows, InOrder(), lower, refs);
  return read_first_tier(ids, out.rows, AtPlaces{out.places}, lower, refs);
}

template <class Places>
uint64_t LookUp::read_first_tier(std::span<const int64_t> ids, float* out, const Places& places,
                                 BatchInFlight* lower, RowRef* refs) const {
  const MemoryTier& first = store_.tiers().first();
  Phase phase(first.meter());
  const size_t row_bytes = static_cast<size_t>(store_.layout().dim()) * sizeof(float);
  uint64_t hits = 0;
  ChangedRows changed;
  const auto note_changed = [&changed](size_t place) { changed.note(place); };
  // Two branches: a traced gather can't stay in registers, and is slow anyway.
  if (phase.wants_addresses()) [[unlikely]] {
    first.rows().gather<false>(out, note_changed, [&](auto& gather) {
      TracedGather traced(gather, phase, first, row_bytes);
      hits = find_rows(ids, out, places, lower, refs, traced, changed.places);
    });
  } else {
    first.rows().gather(out, note_changed, [&](auto& gather) __attribute__((always_inline)) {
      hits = find_rows(ids, out, places, lower, refs, gather, changed.places);
    });
  }
  phase.count(Access::kLoad, hits + changed.noted, row_bytes);
  return hits;
}

// Works per id rather than in blocks: evenly spread, the fetches of one id overlap with the work on other
// ids, and fetches of buckets with those of rows. Inlined so that `gather` is known not to escape, and its
// members stay in registers.
template <class Gather, class Places>
[[gnu::always_inline]] inline uint64_t LookUp::find_rows(std::span<const int64_t> ids, float* out,
                                                         const Places& places, BatchInFlight* lower,
                                                         RowRef* refs, Gather& gather,
                                                         std::vector<size_t>& changed) const {
  const auto dim = static_cast<size_t>(store_.layout().dim());
  const bool is_filtered = filters_.any();
  IndexReader reader(store_.index());
  std::array<IndexReader::Home, kBucketsFetchedAhead> homes;
  // Ids without a row, about which a filter has to be asked: what it looks at is prefetched for several ids
  // first.
  std::array<size_t, kAskedAtOnce> absent;
  size_t absent_count = 0;
  uint64_t misses = 0;  // of the first tier

  const auto ask_filters = [&] {
    for (const size_t i : std::span(absent).first(std::exchange(absent_count, 0))) {
      copy_initial_value(hash_key(ids[i]), ids[i], out + places.place(i) * dim);
    }
  };
  // Out of line: code that rarely runs would take the loop's registers.
  const auto miss = [&](size_t i, const Bucket* bucket, uint32_t state, RowRef ref)
                        __attribute__((noinline)) {
                          ++misses;
                          if (ref) {
                            lower->add(ids[i], {bucket, state, ref}, i);
                          } else if (is_filtered) {
                            filters_.filter_of(ids[i])->prefetch_admits(hash_key(ids[i]));
                            absent[absent_count++] = i;
                            if (absent_count == absent.size()) ask_filters();
                          } else {
                            copy_initial_value(hash_key(ids[i]), ids[i], out + places.place(i) * dim);
                          }
                        };
  const auto take = [&](size_t i, const IndexHit& hit) __attribute__((always_inline)) {
    if (refs != nullptr) refs[i] = hit.ref;
    if (hit.ref && hit.ref.tier() == 0) [[likely]] {
      gather.add({&hit.bucket->guard, hit.state, hit.ref.slot(), places.place(i)});
    } else {
      miss(i, hit.bucket, hit.state, hit.ref);
    }
  };
  const auto take_all = [&](auto all_wide) __attribute__((always_inline)) {
    constexpr bool kAllWide = decltype(all_wide)::value;
    const auto fetch = [&](size_t i) __attribute__((always_inline)) {
      const IndexReader::Home home = reader.home<kAllWide>(ids[i]);
      homes[i % homes.size()] = home;
      prefetch_line(home.bucket);
    };
    const size_t first_fetched = std::min(homes.size(), ids.size());
    for (size_t i = 0; i < first_fetched; ++i) fetch(i);
    size_t next = 0;
    for (const size_t rest = ids.size() - first_fetched; next < rest; ++next) {
      const IndexReader::Home home = homes[next % homes.size()];
      fetch(next + homes.size());
      take(next, reader.find<kAllWide>(home, ids[next]));
    }
    for (; next < ids.size(); ++next) {
      take(next, reader.find<kAllWide>(homes[next % homes.size()], ids[next]));
    }
  };

  reader.all_are_wide() ? take_all(std::true_type()) : take_all(std::false_type());
  gather.finish();
  while (!changed.empty()) [[unlikely]] {
    for (const size_t place : std::exchange(changed, {})) {
      const size_t i = places.number(place);
      take(i, reader.find(ids[i]));
    }
    gather.finish();
  }
  ask_filters();
  return ids.size() - misses;
}

void LookUp::read_lower(const RowsOut& out, BatchInFlight& lower, RowPart part) const {
  Damage damage;
  read_found(out, lower, part, damage);
  if (!damage.keys.empty()) throw DamagedRowsError(std::move(damage.keys), damage.first);
}

void LookUp::read_found(const RowsOut& out, BatchInFlight& lower, RowPart part, Damage& damage) const {
  constexpr size_t kRowsAhead = 8;
  const auto dim = static_cast<size_t>(store_.layout().dim());
  const TierStack& tiers = store_.tiers();
  std::vector<size_t> again;
  for (size_t t = 0; t < tiers.size(); ++t) {
    if (tiers.memory(t) == nullptr || lower.rows_of(t).places().empty()) continue;
    const MemoryTier& memory = *tiers.memory(t);
    // The device can't report which lines it reads, so watched rows are copied.
    const bool is_watched = memory.meter().wanted_notes() != TierMeter::Notes::kCounts;
    if (out.left_at != nullptr && memory.has_pinned_rows() && !is_watched) {
      note_addresses(memory, t, out, lower);
    } else {
      copy_from_memory(memory, t, out, lower, again);
    }
  }
  const bool any_outside_memory = lower.rows_outside_memory(tiers) != 0;
  if (any_outside_memory) lower.read_to_raise(tiers, part);
  IndexReader reader(store_.index());
  for (size_t i = 0; any_outside_memory && i < lower.size(); ++i) {
    if (i + kRowsAhead < lower.size()) prefetch_line(lower.found(i + kRowsAhead).hit.bucket);
    const BatchInFlight::Found& found = lower.found(i);
    if (tiers.memory(found.hit.ref.tier()) != nullptr) continue;
    // A change of a neighbour in the bucket voids what was found, but not the row.
    if (!lower.is_valid(i) && !lower.is_valid_at(i, reader.find(found.key).ref, tiers)) {
      again.push_back(i);
    } else if (!lower.is_damaged(i)) {
      std::copy_n(lower.row(i), dim, out.rows + out.place(found.tag) * dim);
    } else if (part == RowPart::kAll) {
      again.push_back(i);  // the weights may be whole
    } else {
      if (damage.keys.empty()) damage.first = lower.damage(i);
      damage.keys.push_back(found.key);
    }
  }
  if (!again.empty()) [[unlikely]]
    reread(out, lower, again, damage);
}

void LookUp::note_addresses(const MemoryTier& tier, size_t t, const RowsOut& out,
                            const BatchInFlight& lower) const {
  Phase phase(tier.meter());
  for (size_t i = 0; i < lower.size(); ++i) {
    const BatchInFlight::Found& found = lower.found(i);
    if (found.hit.ref.tier() != t) continue;
    out.left_at[out.place(found.tag)] = tier.row_on_device(found.hit.ref.slot());
  }
  phase.count(Access::kLoad, lower.rows_of(t).places().size(),
              store_.layout().block_floats() * sizeof(float));
}

// Rows of memory are copied straight to `out`, without a buffer in between, for which a large batch would
// take memory from the system.
void LookUp::copy_from_memory(const MemoryTier& tier, size_t t, const RowsOut& out,
                              const BatchInFlight& lower, std::vector<size_t>& again) const {
  constexpr size_t kBucketsAhead = 8;
  Phase phase(tier.meter());
  const size_t row_bytes = store_.layout().block_floats() * sizeof(float);
  std::vector<size_t> changed;  // places
  const auto note_changed = [&changed](size_t place) { changed.push_back(place); };
  tier.rows().gather(out.rows, note_changed, [&](auto& gather) {
    for (size_t i = 0; i < lower.size(); ++i) {
      if (i + kBucketsAhead < lower.size()) prefetch_line(lower.found(i + kBucketsAhead).hit.bucket);
      const auto& [key, hit, tag, row] = lower.found(i);
      if (hit.ref.tier() == t) gather.add({&hit.bucket->guard, hit.state, hit.ref.slot(), out.place(tag)});
    }
    gather.finish();
  });
  phase.count(Access::kLoad, lower.rows_of(t).places().size(), row_bytes);
  if (phase.wants_addresses()) [[unlikely]] {
    for (const Place& place : lower.rows_of(t).places()) {
      phase.touch(tier.meter(), Access::kLoad, row_bytes, tier.rows().row(place.slot));
    }
  }
  if (changed.empty()) return;
  // It is unknown whether the row itself or a neighbour in its bucket has changed.
  std::sort(changed.begin(), changed.end());
  for (size_t i = 0; i < lower.size(); ++i) {
    const bool is_void = std::binary_search(changed.begin(), changed.end(), out.place(lower.found(i).tag));
    if (is_void) again.push_back(i);
  }
}

// Out of line, so that read_first_tier() is compiled as its other callers need it.
[[gnu::noinline, gnu::cold]] void LookUp::reread(const RowsOut& out, const BatchInFlight& lower,
                                                 std::span<const size_t> which, Damage& damage) const {
  const auto dim = static_cast<size_t>(store_.layout().dim());
  // The rows are found anew, wherever they are now.
  std::vector<int64_t> keys(which.size());
  std::vector<float> rows(which.size() * dim);
  std::transform(which.begin(), which.end(), keys.begin(), [&](size_t i) { return lower.found(i).key; });
  const BatchPtr again = store_.start_batch();
  read_first_tier(keys, rows.data(), again.get(), nullptr);
  if (!again->empty()) read_found(rows.data(), *again, RowPart::kWeights, damage);
  for (size_t k = 0; k < which.size(); ++k) {
    std::copy_n(rows.data() + k * dim, dim, out.rows + out.place(lower.found(which[k]).tag) * dim);
  }
}

}  // namespace embstore
