#include "parts/key_facts.h"

#include <algorithm>
#include <array>

#include "admission/admission_filter.h"
#include "row/row_batch.h"
#include "store/row_store.h"

namespace embstore {
namespace {

class FactsReader {
 public:
  FactsReader(TableParts& table, std::span<const int64_t> ids, std::span<KeyFacts> facts)
      : table_(table), store_(*table.store), ids_(ids), facts_(facts), phase_(store_.tiers()) {}

  // Rows outside memory are read in one batch per tier: a call there costs as much as many rows.
  void read() {
    const TierStack& tiers = store_.tiers();
    std::array<uint64_t, RowRef::kMaxTiers> reused_places{};
    for (uint32_t t = 0; t < tiers.size(); ++t) reused_places[t] = tiers.tier(t).reused_places();
    std::array<std::vector<size_t>, RowRef::kMaxTiers> below;  // positions in ids_
    std::array<std::vector<Place>, RowRef::kMaxTiers> places;
    for (size_t i = 0; i < ids_.size(); ++i) {
      visit(i, [&](RowRef at) {
        below[at.tier()].push_back(i);
        places[at.tier()].push_back({ids_[i], at.slot()});
      });
    }
    for (uint32_t t = 0; t < tiers.size(); ++t) {
      RowBatch rows(table_.layout);
      rows.set_places(places[t]);
      if (!below[t].empty()) tiers.tier(t).read_rows(rows, RowPart::kAll);
      for (size_t n = 0; n < below[t].size(); ++n) {
        visit(below[t][n], [&](RowRef at) {
          const bool is_what_was_read = at.tier() == t && at.slot() == places[t][n].slot &&
                                        tiers.tier(t).reused_places() == reused_places[t] &&
                                        !rows.is_damaged(n);
          if (is_what_was_read) {
            take(below[t][n], rows.header(n));
          } else {
            read_alone(below[t][n], at);
          }
        });
      }
    }
  }

 private:
  // Takes the facts if they are known in memory. Otherwise calls elsewhere(place of the row); the row
  // stays there meanwhile.
  template <class Elsewhere>
  void visit(size_t i, const Elsewhere& elsewhere) {
    const KeyHash hash = hash_key(ids_[i]);
    IndexShard& shard = store_.shard_of_key(ids_[i]);
    const MutexLock lock(shard.mutex);
    const IndexEntry entry = shard.entry(ids_[i]);
    if (!entry) {
      if (const AdmissionFilter* filter = table_.filters.filter_of(ids_[i]))
        facts_[i] = {filter->count(ids_[i], hash), filter->version(ids_[i], hash)};
    } else if (const MemoryTier* memory = store_.tiers().memory(entry.ref().tier())) {
      take(i, memory->header(entry.ref().slot(), ids_[i]));
      memory->count_header(phase_, Access::kLoad, entry.ref().slot());
    } else {
      elsewhere(entry.ref());
    }
  }

  void read_alone(size_t i, RowRef at) {
    RowBatch row(table_.layout);
    const Place place{ids_[i], at.slot()};
    store_.tiers().tier(at.tier()).read({&place, 1}, row);
    take(i, row.header(0));
  }

  void take(size_t i, const RowHeader& header) { facts_[i] = {header.frequency, header.version}; }

  TableParts& table_;
  RowStore& store_;
  const std::span<const int64_t> ids_;
  const std::span<KeyFacts> facts_;
  MemoryPhase phase_;
};

}  // namespace

std::vector<KeyFacts> facts_of(TableParts& table, std::span<const int64_t> ids) {
  constexpr size_t kMaxBytes = size_t{8} << 20;
  const size_t ids_at_once = std::max<size_t>(256, kMaxBytes / table.layout.row_bytes());
  std::vector<KeyFacts> facts(ids.size());
  for (size_t first = 0; first < ids.size(); first += ids_at_once) {
    const size_t count = std::min(ids_at_once, ids.size() - first);
    FactsReader(table, ids.subspan(first, count), std::span(facts).subspan(first, count)).read();
  }
  return facts;
}

}  // namespace embstore
