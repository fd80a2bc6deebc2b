#include "bench/tier_alone.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"
#include "tiers/leveldb/leveldb_tier.h"
#include "tiers/log/ssd_hash_tier.h"

namespace embstore {
namespace {

std::unique_ptr<Tier> make_tier(const std::string& kind, std::string directory, const RowLayout& layout,
                                bool direct) {
  if (kind == "LEVELDB" && !direct) return std::make_unique<LevelDbTier>("bench", layout, directory);
  if (kind == "SSDHASH") {
    SsdHashOptions options;
    options.direct = direct;
    return std::make_unique<SsdHashTier>(log::TableIdentity{"bench", "", layout, {}}, std::move(directory),
                                         options);
  }
  throw Error(ErrorKind::kInvalidArgument,
              "kind: there is no tier " + kind + (direct ? " that goes past the page cache" : " in files"));
}

}  // namespace

TierAlone::TierAlone(const std::string& kind, std::string directory, int dim, int slot_count,
                     size_t row_count, bool direct)
    : layout_(dim, slot_count),
      slots_(row_count, kNowhere),
      tier_(make_tier(kind, std::move(directory), layout_, direct)),
      rows_(layout_) {
  tier_->start_compaction(*this);
}

void TierAlone::gather(std::span<const int64_t> ids) const {
  places_.clear();
  for (const int64_t id : ids) {
    const Slot slot = slots_.at(static_cast<size_t>(id));
    if (slot != kNowhere) places_.push_back({id, slot});
  }
}

void TierAlone::write(std::span<const int64_t> ids, const float* rows) {
  gather(ids);
  for (const Place& place : places_) slots_[static_cast<size_t>(place.key)] = kNowhere;
  tier_->erase(places_);
  rows_.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    rows_.header(i) = {.key = ids[i], .frequency = 1, .version = 0, .served = 0, .stamp = 1};
    std::copy_n(rows + i * row_floats(), row_floats(), rows_.row(i));
  }
  new_slots_.resize(ids.size());
  tier_->write(rows_, new_slots_);
  for (size_t i = 0; i < ids.size(); ++i) slots_[static_cast<size_t>(ids[i])] = new_slots_[i];
  tier_->compact();
}

void TierAlone::read(std::span<const int64_t> ids, float* rows) const {
  gather(ids);
  tier_->read(places_, rows_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i >= places_.size() || rows_.header(i).key != ids[i]) {
      throw Error(ErrorKind::kStorage, "the tier has no row of id " + std::to_string(ids[i]));
    }
    std::copy_n(rows_.row(i), row_floats(), rows + i * row_floats());
  }
}

void TierAlone::relocate(std::span<Relocation> rows) {
  for (Relocation& row : rows) {
    Slot& slot = slots_[static_cast<size_t>(row.key)];
    row.done = slot == row.from;
    if (row.done) slot = row.to;
  }
}

}  // namespace embstore
