#include "store/inclusive_cache.h"

#include "tiers/hbm/hbm_tier.h"

namespace embstore {

InclusiveCache::InclusiveCache(const std::vector<Level>& levels, PoolTier& pool) : pool_(pool) {
  for (const Level& level : levels) levels_.emplace_back(level);
}

// Marks say which rows of HBM have clean copies.
void InclusiveCache::store(RowRef at, uint32_t word) {
  word_of(at).store(word, std::memory_order_relaxed);
  HbmTier* const hbm = levels_[at.tier()].level.hbm;
  if (hbm != nullptr) hbm->mark(at.slot(), word != kChanged && (word & kWantedBit) == 0);
}

uint64_t InclusiveCache::first_wanting(uint32_t word) const {
  // Checkpoints that are under way together have numbers close to each other.
  const uint64_t newest = newest_wanting_.load(std::memory_order_relaxed);
  return newest - ((newest - word) & (kWantedBit - 1));
}

InclusiveCache::WritePhase::WritePhase(const InclusiveCache& copies) : Phase(copies.pool_.meter()) {
  for (const LevelWords& words : copies.levels_) {
    if (words.level.memory != nullptr) add_meter(words.level.memory->meter());
  }
}

Slot InclusiveCache::write(RowRef at, int64_t key, bool is_live, Phase& phase) {
  const uint32_t word = load(at);
  const MemoryTier& tier = memory_of(at);
  const Slot to =
      pool_.write_claimed(tier.header(at.slot(), key), tier.rows().row(at.slot()), is_live, phase);
  tier.count_row(phase, Access::kLoad, at.slot());
  pool_.add_to_checkpoints(first_wanting(word), to);
  return to;
}

// --- Rows that come, move and leave

bool InclusiveCache::note_insert(RowRef at) {
  if (!is_here(at)) return false;
  store(at, kChanged);
  return true;
}

bool InclusiveCache::note_move(int64_t key, RowRef from, RowRef to) {
  if (is_here(from) && is_here(to)) {
    if (is_wanted(from) && !is_addressable(to)) write_alone(from, key);
    store(to, load(from));
    if (is_wanted(from) && !is_addressable(from)) wanted_on_device_.fetch_sub(1);
    store(from, kChanged);
  } else if (is_here(from)) {
    note_in_pool(from, key, to.slot());
  } else if (is_here(to) && from.tier() == pool_tier()) {
    set_copy(to, from.slot());
    return true;
  } else if (is_here(to)) {
    store(to, kChanged);  // from below the pool, so it has a claim
  }
  return false;
}

bool InclusiveCache::try_claim(RowRef from, ClaimPurpose purpose, PoolClaim* places) {
  if (from.tier() < tier_below()) return true;
  if (places != nullptr) return places->try_pass_on(1);
  return purpose == ClaimPurpose::kUpdate ? pool_.try_claim(1) : pool_.try_claim_spare(1);
}

void InclusiveCache::write_alone(RowRef at, int64_t key) {
  WritePhase phase(*this);
  write_wanted(at, key, phase);
  pool_.fence();
  note_fenced(1);
}

void InclusiveCache::note_in_pool(RowRef at, int64_t key, Slot to) {
  const uint32_t word = load(at);
  if ((word & kWantedBit) != 0) {
    pool_.add_to_checkpoints(first_wanting(word), to);
    note_fenced(1);
    pool_.give_claim_back(1);
  } else if (word == kChanged) {
    pool_.give_claim_back(1);
  } else if (word - 1 != to) {
    const Place copy{key, word - 1};
    pool_.erase({&copy, 1});
  }
  store(at, kChanged);
}

void InclusiveCache::note_remove(int64_t key, RowRef from) {
  if (!is_here(from)) return;
  const uint32_t word = load(from);
  if ((word & kWantedBit) != 0) {
    WritePhase phase(*this);
    write(from, key, /*is_live=*/false, phase);  // uses the row's claim
    pool_.fence();
    note_fenced(1);
  } else if (word == kChanged) {
    pool_.give_claim_back(1);
  } else {
    const Place copy{key, word - 1};
    pool_.erase({&copy, 1});
  }
  store(from, kChanged);
}

// --- Updates

InclusiveCache::Changes::~Changes() {
  erase();
  if (written_ == 0) return;
  copies_.pool_.fence();
  copies_.note_fenced(written_);
}

void InclusiveCache::Changes::erase() {
  if (erased_count_ != 0) copies_.pool_.erase(std::span(erased_).first(erased_count_));
  erased_count_ = 0;
}

bool InclusiveCache::Changes::prepare_change(RowRef at, int64_t key) {
  const uint32_t word = copies_.load(at);
  if (word == kChanged) return false;
  if ((word & kWantedBit) != 0) {
    if (!phase_) phase_.emplace(copies_);
    copies_.write(at, key, /*is_live=*/false, *phase_);
    ++written_;
  } else {
    erased_[erased_count_++] = {key, word - 1};
    if (erased_count_ == erased_.size()) erase();
  }
  copies_.word_of(at).store(kChanged, std::memory_order_relaxed);
  return true;
}

// --- Checkpoints

template <class Visit>
void InclusiveCache::for_each_slot(Visit visit) const {
  const auto visit_level = [&](uint32_t t) {
    const uint64_t end = levels_[t].level.ranked.first_never_taken();
    for (uint64_t i = 0; i < end; ++i) visit(levels_[t].level, RowRef(t, static_cast<Slot>(i)));
  };
  for (uint32_t t = 0; t < levels_.size(); ++t) {
    if (levels_[t].level.memory == nullptr) visit_level(t);
  }
  for (uint32_t t = 0; t < levels_.size(); ++t) {
    if (levels_[t].level.memory != nullptr) visit_level(t);
  }
}

void InclusiveCache::mark_changed_as_wanted(uint64_t number) {
  newest_wanting_.store(number);
  const auto word = kWantedBit | static_cast<uint32_t>(number & (kWantedBit - 1));
  uint64_t marked = 0;
  uint64_t on_device = 0;
  for_each_slot([&](const Level& level, RowRef at) {
    if (load(at) != kChanged || !level.ranked.ranks().is_filled(at.slot())) return;
    store(at, word);
    ++marked;
    on_device += level.memory == nullptr;
  });
  wanted_count_.fetch_add(marked);
  wanted_on_device_.fetch_add(on_device);
}

std::vector<RowRef> InclusiveCache::wanted() const {
  std::vector<RowRef> rows;
  rows.reserve(wanted_count());
  for_each_slot([&](const Level&, RowRef at) {
    if (is_wanted(at)) rows.push_back(at);
  });
  return rows;
}

void InclusiveCache::note_written(RowRef at, Slot to) {
  pool_.add_to_checkpoints(first_wanting(load(at)), to);
  note_fenced(1);
  pool_.give_claim_back(1);
  set_copy(at, to);
  if (!is_addressable(at)) wanted_on_device_.fetch_sub(1);
}

void InclusiveCache::write_wanted(RowRef at, int64_t key, Phase& phase) {
  set_copy(at, write(at, key, /*is_live=*/true, phase));
}

void InclusiveCache::forget_wanted() {
  for (const RowRef at : wanted()) store(at, kChanged);
  wanted_count_.store(0);
  wanted_on_device_.store(0);
}

}  // namespace embstore
