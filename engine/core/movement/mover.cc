#include "movement/mover.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "threads/helping_threads.h"
#include "threads/safe_point.h"

namespace embstore {
namespace {

// Look-ups count accesses themselves once more bytes than these wait to be counted.
constexpr size_t kMaxWaitingBytes = size_t{32} << 20;

// The bytes that are counted in one turn, before another waiting thread has the right to move.
constexpr size_t kBytesATurn = size_t{1} << 20;
constexpr size_t kAllBytes = std::numeric_limits<size_t>::max();
// The same for each of the threads that count.
size_t bytes_a_turn_beside_steps() { return kBytesATurn * HelpingThreads::max_threads(); }

// Calls of Demotion::step() before another table has its turn on an eviction thread.
constexpr int kStepsATurn = 16;

// The prefetched rows that come up before steps on the device have their turn.
constexpr size_t kRowsBroughtUpATurn = Demotion::kRowsAtOnce;

}  // namespace

Mover::Mover(RowStore& store, CacheStrategy strategy, DeviceSteps* steps)
    : store_(store),
      strategy_(strategy),
      steps_(steps),
      relocator_(store),
      prefetched_(store.tiers().hbm() ? store.tiers().capacity_rows(store.tiers().tier_of_level(0)) : 0),
      promotion_(
          store,
          [this](size_t t, uint64_t count) {
            right_to_move_.assert_held();
            return claim_for_promotion(t, count);
          },
          [this](size_t t, Promotion::Moves moves) -> std::optional<Rank> {
            right_to_move_.assert_held();
            if (strategy_ != CacheStrategy::kLfu) return std::nullopt;
            if (moves == Promotion::Moves::kLater) return demotion_.floor_of(t);
            // Without these moves it would be the rank of a row that is about to go down.
            for (int step = 0; step < kStepsATurn && demotion_.step(); ++step) {
            }
            return demotion_.current_floor_of(t);
          }),
      demotion_(store, strategy, prefetched_) {
  store_.tiers().start_compaction(relocator_);
  EvictionPool::instance();  // which reports a bad number of threads here rather than in a look-up
}

// --- Room

SlotClaim Mover::claim(uint64_t count) {
  SlotAllocator& slots = store_.tiers().first().slots();
  if (slots.try_claim(count)) return SlotClaim(slots, count);
  SlotClaim claim(slots, 0);
  {
    const RightToMove::Scope scope(right_to_move_);
    // While updates wait for room one after the other, the eviction threads never get the right to count.
    count_waiting(kBytesATurn);
    claim = claim_with_right(count);
  }
  note_rows_changed();
  return claim;
}

SlotClaim Mover::claim_with_right(uint64_t count) {
  MemoryTier& first = store_.tiers().first();
  SlotAllocator& slots = first.slots();
  while (!slots.try_claim(count)) {
    if (demotion_.step()) continue;
    // The rows that are left are pinned, their slots are claimed by other threads, or there are just fewer
    // than a batch brings. Waiting for those threads could be a deadlock: they may wait for this one.
    const uint64_t free = slots.free_slots();
    if (free < count) first.add_slots(count - free);
  }
  return SlotClaim(slots, count);
}

std::optional<SlotClaim> Mover::claim_for_promotion(size_t t, uint64_t count) {
  const auto is_short = [&] { return store_.excess_rows(t) + count > store_.tiers().headroom_rows(t); };
  // Tries to move at most twice as many rows down as come up, until there are few enough: updates may have
  // pinned all of the coldest rows.
  for (uint64_t left = 2 * count; left != 0 && is_short();) {
    const uint64_t rows = std::min(left, Demotion::kRowsAtOnce);
    if (!demotion_.step(rows)) break;
    left -= rows;
  }
  if (t == 0) return claim_with_right(count);
  SlotAllocator& slots = store_.tiers().memory(t)->slots();
  return slots.try_claim(count) ? std::optional(SlotClaim(slots, count)) : std::nullopt;
}

bool Mover::can_update_in_place(size_t t, bool nothing_moves) const {
  const TierStack& tiers = store_.tiers();
  if (strategy_ != CacheStrategy::kLfu || tiers.memory(t) == nullptr) return false;
  return nothing_moves || tiers.memory(t)->is_ranked() ||
         (tiers.hbm() == nullptr && tiers.host_rows_are_in_memory());
}

void Mover::note_min_counts() {
  for (size_t t = store_.tiers().tier_of_level(0); t + 1 < store_.tiers().size(); ++t) {
    const std::optional<Rank> floor = demotion_.floor_of(t);
    min_counts_[t].store(floor ? floor->count : 0, std::memory_order_relaxed);
  }
}

void Mover::forget_min_counts() {
  for (std::atomic<uint64_t>& count : min_counts_) count.store(0, std::memory_order_relaxed);
}

void Mover::queue_updated_below(std::list<PageVector<RowToRaise>>&& rows) noexcept {
  const MutexLock lock(updated_mutex_);
  updated_below_.splice(updated_below_.end(), rows);
  any_updated_below_.store(true, std::memory_order_release);
}

void Mover::take_updated_below(Steps steps) {
  if (!any_updated_below_.load(std::memory_order_acquire)) return;
  std::list<PageVector<RowToRaise>> updated;
  {
    const MutexLock lock(updated_mutex_);
    updated.swap(updated_below_);
    any_updated_below_.store(false, std::memory_order_release);
  }
  for (const PageVector<RowToRaise>& rows : updated) {
    if (steps == Steps::kRunning && promotion_.can_count_without_moves()) {
      promotion_.take_in_without_moves(rows);
    } else {
      promotion_.add_uncounted(rows);
    }
  }
}

void Mover::note_rows_changed() {
  note_rows_changed_without_wait();
  store_.tiers().compact();
}

void Mover::note_rows_changed_without_wait() {
  if (has_work()) EvictionPool::instance().schedule(*this);
}

bool Mover::has_work() const {
  return any_requests_.load(std::memory_order_acquire) ||
         any_updated_below_.load(std::memory_order_acquire) || any_to_bring_up() || !log_.empty() ||
         store_.has_excess();
}

// --- Counting

void Mover::count_served(BatchPtr batch) {
  if (!has_room_in_log() && !wait_for_room_in_log(batch->size_bytes())) {
    forgotten_.fetch_add(batch->access_count(), std::memory_order_relaxed);
    EvictionPool::instance().schedule(*this);
  } else {
    log_served(std::move(batch));
  }
}

// False if look-ups wait already, so that this one queues behind them and all of them get on.
bool Mover::has_room_in_log() const {
  return log_.waiting_bytes() <= kMaxWaitingBytes && look_ups_waiting_.load() == 0;
}

bool Mover::lock_for_look_up() {
  look_ups_waiting_.fetch_add(1);
  const bool has_right = right_to_move_.lock_unless_paused();
  look_ups_waiting_.fetch_sub(1);
  return has_right;
}

bool Mover::make_room_in_log_beside_steps() {
  if (!lock_for_look_up()) return false;
  try {
    while (log_.waiting_bytes() > kMaxWaitingBytes && count_beside_steps(bytes_a_turn_beside_steps())) {
    }
  } catch (const std::exception&) {
    // The next thread that makes room meets the error, too.
  }
  right_to_move_.unlock();
  EvictionPool::instance().schedule(*this);
  return log_.waiting_bytes() <= kMaxWaitingBytes;
}

// Makes half of the log free at once, since steps on the device wait for it.
bool Mover::make_room_in_log() {
  const size_t bytes = log_.waiting_bytes();
  if (!wait_for_room_in_log(bytes > kMaxWaitingBytes / 2 ? bytes - kMaxWaitingBytes / 2 : 0)) return false;
  note_rows_changed_without_wait();
  return true;
}

void Mover::log_served(BatchPtr batch) {
  log_.append(std::move(batch));
  EvictionPool::instance().schedule(*this);
}

bool Mover::wait_for_room_in_log(size_t bytes) {
  if (!background_error().empty()) return false;  // the eviction threads try again
  if (!lock_for_look_up()) return false;
  std::string error;
  try {
    if (log_.waiting_bytes() > kMaxWaitingBytes) count_waiting(bytes);
  } catch (const std::exception& caught) {
    // The look-up has its rows already: it doesn't report what goes wrong elsewhere.
    error = caught.what();
  }
  right_to_move_.unlock();
  const bool went_well = error.empty();
  note_outcome(std::move(error));
  return went_well;
}

void Mover::count_waiting(size_t bytes) {
  take_updated_below(Steps::kStopped);
  promotion_.count(log_.take_oldest(bytes));
}

bool Mover::count_beside_steps(size_t bytes) {
  if (strategy_ != CacheStrategy::kLfu || !promotion_.can_count_without_moves()) return false;
  const std::vector<BatchPtr> batches = log_.take_oldest(bytes, [this](const BatchInFlight& batch) {
    right_to_move_.assert_held();
    return promotion_.can_count_without_moves(batch);
  });
  if (batches.empty()) return false;
  promotion_.count_without_moves(batches);
  return true;
}

// --- Prefetched rows

void Mover::prefetch(uint64_t turn, std::vector<int64_t> keys) {
  if (store_.tiers().levels() == 1) return;  // there is no other place for rows
  {
    const MutexLock lock(requests_mutex_);
    requests_.push_back({turn, std::move(keys)});
    any_requests_.store(true, std::memory_order_release);
  }
  EvictionPool::instance().schedule(*this);
}

void Mover::locate_prefetched() {
  std::vector<PrefetchRequest> requests;
  {
    const MutexLock lock(requests_mutex_);
    requests = std::exchange(requests_, {});
    any_requests_.store(false, std::memory_order_release);
  }
  const TierStack& tiers = store_.tiers();
  for (const PrefetchRequest& batch : requests) {
    if (batch.turn <= turns_.last_over()) continue;  // its turn is over
    release_prefetched();
    const Epochs::Guard guard = store_.epochs().enter();
    IndexReader reader(store_.index());
    prefetched_.add(batch.turn, batch.keys, [&](int64_t key) {
      const RowRef at = reader.place_of(key);
      if (!at) return PrefetchedRows::Where::kNowhere;
      return tiers.level_of(at.tier()) == 0 ? PrefetchedRows::Where::kUp : PrefetchedRows::Where::kBelow;
    });
  }
  release_prefetched();
}

void Mover::release_prefetched() {
  const uint64_t last_over = turns_.last_over();
  if (!prefetched_.any_to_release(last_over)) return;
  const Epochs::Guard guard = store_.epochs().enter();
  IndexReader reader(store_.index());
  prefetched_.release(last_over, [&](int64_t key) {
    right_to_move_.assert_held();
    const RowRef at = reader.place_of(key);
    if (at && at.tier() == store_.tiers().tier_of_level(0)) demotion_.release(at.slot());
  });
}

bool Mover::bring_up_some() {
  if (!prefetched_.any_below()) return false;
  // No row is to wait above a GPU that can't take it. Checked first, so that the next caller meets the error,
  // too.
  store_.tiers().tier(store_.tiers().tier_of_level(0)).check_not_lost();
  promotion_.bring_up(prefetched_.take_below(kRowsBroughtUpATurn));
  return true;
}

// --- Moving

Mover::Left Mover::run_beside_steps() noexcept {
  // The thread that holds the right to move has the rest done when it lets go of the right.
  if (!right_to_move_.try_lock()) return Left::kNothing;
  Left left = Left::kNothing;
  std::string error;
  try {
    locate_prefetched();
    take_updated_below(Steps::kRunning);
    note_min_counts();
    const bool any_served = !log_.empty();
    if (any_served && !promotion_.has_too_many_waiting() &&
        !count_beside_steps(bytes_a_turn_beside_steps())) {
      left = Left::kToCountAndMove;
    } else if (any_to_bring_up() || store_.has_excess() || promotion_.has_many_waiting() ||
               promotion_.has_uncounted()) {
      left = Left::kToMove;
    } else if (has_work()) {
      left = Left::kMore;
    } else {
      store_.tiers().compact();
    }
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  right_to_move_.unlock();
  if (!error.empty()) note_outcome(std::move(error));
  return left;
}

bool Mover::run() noexcept {
  Left left = Left::kToCountAndMove;
  if (steps_ != nullptr) {
    left = run_beside_steps();
    // If nothing has to move, steps on the device go on.
    if (left == Left::kNothing || left == Left::kMore) return left == Left::kMore;
  }
  const DeviceSteps::HostUse use(steps_, DeviceSteps::Length::kShort);
  // The thread that holds the right to move has the rest done when it lets go of the right.
  if (!right_to_move_.try_lock()) return false;
  bool any = false;
  bool any_raising = false;
  std::string error;
  try {
    if (left == Left::kToCountAndMove) {
      count_waiting(kBytesATurn);
    } else if (promotion_.has_uncounted()) {
      promotion_.count({});
    }
    if (promotion_.has_many_waiting()) promotion_.raise_some_waiting();
    any_raising = promotion_.has_many_waiting();
    release_prefetched();
    bring_up_some();
    for (int step = 0; step < kStepsATurn; ++step) {
      any = demotion_.step();
      if (!any) break;
    }
    if (!any) store_.tiers().compact();
    note_min_counts();
  } catch (const std::exception& caught) {
    any = false;
    error = caught.what();
  }
  right_to_move_.unlock();
  safe_point();
  const bool went_well = error.empty();
  note_outcome(std::move(error));
  return any || (went_well && (!log_.empty() || any_to_bring_up() || any_raising));
}

void Mover::settle_with_right() {
  // Counts what was served before, but not what is served meanwhile, which might never end.
  count_waiting(kAllBytes);
  release_prefetched();
  do {
    while (demotion_.step()) {
    }
  } while (promotion_.raise_some_waiting());
  store_.tiers().compact();
  note_outcome("");
}

void Mover::settle() {
  {
    const RightToMove::Scope scope(right_to_move_);
    locate_prefetched();
    while (bring_up_some()) {
    }
    settle_with_right();
    note_min_counts();
    demotion_.vacate_added_slots();
  }
  note_rows_changed();
}

void Mover::make_room_in_pool(uint64_t count) {
  const InclusiveCache* const cache = store_.cache();
  if (cache == nullptr || store_.tiers().ranked(cache->pool_tier()) == nullptr) return;
  const RightToMove::Scope scope(right_to_move_);
  for (uint64_t missing = cache->missing_places(count); missing != 0;) {
    const uint64_t demoted_before = demotion_.demoted_rows();
    if (!demotion_.make_room(cache->pool_tier(), missing)) return;
    const uint64_t before = std::exchange(missing, cache->missing_places(count));
    const bool any_moved = demotion_.demoted_rows() != demoted_before;
    if (any_moved && missing >= before) return;
  }
}

void Mover::stop() { EvictionPool::instance().cancel(*this); }

void Mover::note_outcome(std::string error) {
  MutexLock lock(outcome_mutex_);
  background_error_ = std::move(error);
}

std::string Mover::background_error() const {
  MutexLock lock(outcome_mutex_);
  return background_error_;
}

// --- Holding moves off

Mover::Pause::Pause(Mover& mover) NO_THREAD_SAFETY_ANALYSIS : mover_(mover) {
  mover_.right_to_move_.lock_for_pause();
  mover_.forget_min_counts();  // rows may leave the table
}

Mover::Pause::~Pause() NO_THREAD_SAFETY_ANALYSIS {
  mover_.right_to_move_.unlock_after_pause();
  if (mover_.has_work()) EvictionPool::instance().schedule(mover_);
}

void Mover::Pause::settle() {
  mover_.right_to_move_.assert_held();
  mover_.settle_with_right();
  mover_.demotion_.vacate_added_slots();
}

SlotClaim Mover::Pause::claim(uint64_t count) {
  mover_.right_to_move_.assert_held();
  return mover_.claim_with_right(count);
}

bool Mover::Pause::shrink_once() {
  mover_.right_to_move_.assert_held();
  return mover_.demotion_.step();
}

std::optional<Rank> Mover::Pause::min_rank(size_t t) const {
  mover_.right_to_move_.assert_held();
  return mover_.demotion_.min_rank(t);
}

}  // namespace embstore
