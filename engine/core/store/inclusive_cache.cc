#include "store/inclusive_cache.h"

namespace embstore {

InclusiveCache::InclusiveCache(MemoryTier& first, PoolTier& pool)
    : first_(first), pool_(pool), words_(first.slots().most_slots()) {}

uint64_t InclusiveCache::first_wanting(uint32_t word) const {
  // Numbers of checkpoints that are under way together are close to each other.
  const uint64_t newest = newest_wanting_.load(std::memory_order_relaxed);
  return newest - ((newest - word) & (kWantedBit - 1));
}

InclusiveCache::WritePhase::WritePhase(const InclusiveCache& copies) : Phase(copies.pool_.meter()) {
  also_at(copies.first_.meter());
}

Slot InclusiveCache::write(Slot slot, int64_t key, bool is_live, Phase& phase) {
  const uint32_t word = load(slot);
  const Slot to = pool_.write_claimed(first_.header(slot, key), first_.rows().row(slot), is_live, phase);
  first_.count_row(phase, Access::kLoad, slot);
  pool_.add_to_checkpoints(first_wanting(word), to);
  return to;
}

// --- Where rows come, move and leave

bool InclusiveCache::came(RowRef at) {
  if (at.tier() != kCache) return false;
  store(at.slot(), kChanged);
  return true;
}

bool InclusiveCache::moved(int64_t key, RowRef from, RowRef to) {
  if (from.tier() == kCache && to.tier() == kCache) {
    store(to.slot(), load(from.slot()));
    store(from.slot(), kChanged);
  } else if (from.tier() == kCache) {
    went_to_pool(from.slot(), key, to.slot());
  } else if (to.tier() == kCache && from.tier() == kPool) {
    has_copy(to.slot(), from.slot());
    return true;
  } else if (to.tier() == kCache) {
    store(to.slot(), kChanged);  // from below the pool: it has a claim
  }
  return false;
}

void InclusiveCache::will_go(int64_t key, RowRef from) {
  if (from.tier() == kCache) will_go(from.slot(), key);
}

void InclusiveCache::went_to_pool(Slot slot, int64_t key, Slot to) {
  const uint32_t word = load(slot);
  if ((word & kWantedBit) != 0) {
    pool_.add_to_checkpoints(first_wanting(word), to);
    were_fenced(1);
    pool_.give_claim_back(1);
  } else if (word == kChanged) {
    pool_.give_claim_back(1);
  } else if (word - 1 != to) {
    const Place copy{key, word - 1};
    pool_.erase({&copy, 1});
  }
  store(slot, kChanged);
}

void InclusiveCache::will_go(Slot slot, int64_t key) {
  const uint32_t word = load(slot);
  if ((word & kWantedBit) != 0) {
    WritePhase phase(*this);
    write(slot, key, /*is_live=*/false, phase);  // by the claim of the row
    pool_.fence();
    were_fenced(1);
  } else if (word == kChanged) {
    pool_.give_claim_back(1);
  } else {
    const Place copy{key, word - 1};
    pool_.erase({&copy, 1});
  }
  store(slot, kChanged);
}

// --- Updates

InclusiveCache::Changes::~Changes() {
  erase();
  if (written_ == 0) return;
  copies_.pool_.fence();
  copies_.were_fenced(written_);
}

void InclusiveCache::Changes::erase() {
  if (erased_count_ != 0) copies_.pool_.erase(std::span(erased_).first(erased_count_));
  erased_count_ = 0;
}

bool InclusiveCache::Changes::will_change(Slot slot, int64_t key) {
  const uint32_t word = copies_.load(slot);
  if (word == kChanged) return false;
  if ((word & kWantedBit) != 0) {
    if (!phase_) phase_.emplace(copies_);
    copies_.write(slot, key, /*is_live=*/false, *phase_);
    ++written_;
  } else {
    erased_[erased_count_++] = {key, word - 1};
    if (erased_count_ == erased_.size()) erase();
  }
  copies_.store(slot, kChanged);
  return true;
}

// --- Checkpoints

void InclusiveCache::want_changed(uint64_t number) {
  newest_wanting_.store(number);
  const auto word = kWantedBit | static_cast<uint32_t>(number & (kWantedBit - 1));
  const uint64_t end = first_.slots().untouched_from();
  uint64_t marked = 0;
  for (uint64_t i = 0; i < end; ++i) {
    const auto slot = static_cast<Slot>(i);
    if (load(slot) != kChanged || !first_.ranks().is_filled(slot)) continue;
    store(slot, word);
    ++marked;
  }
  wanted_count_.fetch_add(marked);
}

std::vector<Slot> InclusiveCache::wanted() const {
  std::vector<Slot> slots;
  slots.reserve(wanted_count());
  const uint64_t end = first_.slots().untouched_from();
  for (uint64_t i = 0; i < end; ++i) {
    if (is_wanted(static_cast<Slot>(i))) slots.push_back(static_cast<Slot>(i));
  }
  return slots;
}

void InclusiveCache::was_written(Slot slot, Slot to) {
  pool_.add_to_checkpoints(first_wanting(load(slot)), to);
  were_fenced(1);
  pool_.give_claim_back(1);
  has_copy(slot, to);
}

void InclusiveCache::write_wanted(Slot slot, int64_t key, Phase& phase) {
  has_copy(slot, write(slot, key, /*is_live=*/true, phase));
}

void InclusiveCache::forget_wanted() {
  for (const Slot slot : wanted()) store(slot, kChanged);
  wanted_count_.store(0);
}

}  // namespace embstore
