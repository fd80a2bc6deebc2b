#include "tiers/log/checkpoints.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "errors/error.h"
#include "tiers/log/file_names.h"

namespace embstore::log {

Checkpoints::Checkpoints(const std::string& prefix, TableIdentity table, files::FileCalls& calls)
    : prefix_(prefix),
      lock_(prefix + ".checkpoints"),
      manifests_(prefix + ".checkpoint-", calls),
      table_(std::move(table)),
      found_(manifests_.load(table_)) {}

void Checkpoints::adopt_kept(std::vector<DurableTier*> tiers) {
  const MutexLock lock(mutex_);
  tiers_ = std::move(tiers);
  if (found_.size() > kMaxCheckpoints) {
    refuse(prefix_, "has " + std::to_string(found_.size()) + " checkpoints, and a table may have " +
                        std::to_string(kMaxCheckpoints) + "; remove the manifests that were put there");
  }
  for (const Manifest& manifest : found_) {
    if (manifest.tiers.size() == tiers_.size()) continue;
    throw Error(ErrorKind::kInvalidArgument,
                manifests_.path_of(manifest.number) + ": is of a variable with " +
                    std::to_string(manifest.tiers.size()) + " durable tiers, and this one has " +
                    std::to_string(tiers_.size()) + "; open it with the storage type that it was made with");
  }
  for (size_t t = 0; t < tiers_.size(); ++t) {
    std::vector<TierRows> of_tier;
    for (const Manifest& manifest : found_) of_tier.push_back({manifest.number, manifest.tiers[t]});
    tiers_[t]->adopt_kept(of_tier);
  }
  manifests_.remove_unfinished();
  for (const Manifest& manifest : found_) {
    checkpoints_.push_back({.is = {manifest.number, manifest.id, manifest.rows(), manifest.moment},
                            .is_pending = false,
                            .is_being_committed = false,
                            .may_have_manifest = true});
    newest_number_ = manifest.number;
  }
  awaits_restore_ = !found_.empty();
  found_.clear();
}

Checkpoints::List::iterator Checkpoints::find(uint64_t number) {
  return std::find_if(checkpoints_.begin(), checkpoints_.end(),
                      [number](const Checkpoint& checkpoint) { return checkpoint.is.number == number; });
}

void Checkpoints::note_pending() {
  pending_.store(static_cast<uint64_t>(
                     std::count_if(checkpoints_.begin(), checkpoints_.end(),
                                   [](const Checkpoint& checkpoint) { return checkpoint.is_pending; })),
                 std::memory_order_release);
}

uint64_t Checkpoints::begin(const TableMoment& moment) {
  const MutexLock lock(mutex_);
  if (checkpoints_.size() == kMaxCheckpoints) {
    throw Error(ErrorKind::kStorage, table_.table_name + ": has " + std::to_string(kMaxCheckpoints) +
                                         " checkpoints already, kept and pending, and can't have more");
  }
  checkpoints_.reserve(checkpoints_.size() + 1);
  const uint64_t number = newest_number_ + 1;
  size_t begun = 0;
  try {
    for (; begun < tiers_.size(); ++begun) tiers_[begun]->begin_checkpoint(number);
  } catch (...) {
    while (begun-- > 0) tiers_[begun]->drop_checkpoint(number);
    throw;
  }
  checkpoints_.push_back({.is = {number, {}, 0, moment},
                          .is_pending = true,
                          .is_being_committed = false,
                          .may_have_manifest = false});
  newest_number_ = number;
  note_pending();
  return number;
}

void Checkpoints::commit(uint64_t number, const CheckpointId& id) {
  Manifest manifest{.number = number, .id = id, .moment = {}, .tiers = {}};
  {
    const MutexLock lock(mutex_);
    const auto checkpoint = find(number);
    if (checkpoint == checkpoints_.end() || !checkpoint->is_pending || checkpoint->is_being_committed) {
      throw Error(ErrorKind::kStorage,
                  table_.table_name + ": there's no pending checkpoint " + std::to_string(number));
    }
    checkpoint->is_being_committed = true;  // so that drop() refuses it
    manifest.moment = checkpoint->is.moment;
  }
  try {
    for (DurableTier* const tier : tiers_) manifest.tiers.push_back(tier->make_durable(number));
    {
      const MutexLock lock(mutex_);
      const auto checkpoint = find(number);
      checkpoint->is = {number, id, manifest.rows(), manifest.moment};
      checkpoint->may_have_manifest = true;
    }
    manifests_.write(manifest, table_);
  } catch (...) {
    const MutexLock lock(mutex_);
    find(number)->is_being_committed = false;
    throw;
  }
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  checkpoint->is_being_committed = checkpoint->is_pending = false;
  note_pending();
}

void Checkpoints::drop(uint64_t number) {
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  if (checkpoint == checkpoints_.end()) return;
  if (checkpoint->is_being_committed) {
    throw Error(ErrorKind::kInvalidArgument, table_.table_name + ": checkpoint " + std::to_string(number) +
                                                 " is being written; drop it when that has ended");
  }
  drop(checkpoint);
}

void Checkpoints::drop(List::iterator checkpoint) {
  // Its rows may be overwritten only when its manifest is certainly not on the medium. If the manifest can't
  // be removed, the checkpoint is kept.
  const uint64_t number = checkpoint->is.number;
  if (checkpoint->may_have_manifest) {
    checkpoint->is_pending = false;
    note_pending();
    manifests_.remove(number);
  }
  for (DurableTier* const tier : tiers_) tier->drop_checkpoint(number);
  checkpoints_.erase(checkpoint);
  note_pending();
}

std::vector<KeptCheckpoint> Checkpoints::kept() const {
  const MutexLock lock(mutex_);
  std::vector<KeptCheckpoint> kept;
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (!checkpoint.is_pending) kept.push_back(checkpoint.is);
  }
  return kept;
}

void Checkpoints::check_not_awaiting_restore() const {
  if (!awaits_restore()) return;
  throw Error(
      ErrorKind::kStorage,
      prefix_ +
          ": holds checkpoints of an earlier run; take them over with restore_persisted(), or give them "
          "up with discard_persisted(), before rows are put in or persisted");
}

void Checkpoints::restore(uint64_t number, int threads, const Restored& visit) {
  const MutexLock lock(mutex_);
  const auto checkpoint = find(number);
  if (checkpoint == checkpoints_.end() || checkpoint->is_pending) {
    throw Error(ErrorKind::kStorage, manifests_.path_of(number) +
                                         ": there is no such checkpoint; restore one of those that are kept");
  }
  for (size_t t = tiers_.size(); t-- > 0;) {
    tiers_[t]->restore(number, threads,
                       [&visit, t](std::span<const RowHeader> headers, std::span<const Slot> slots) {
                         visit(t, headers, slots);
                       });
  }
  awaits_restore_ = false;
}

void Checkpoints::drop_newer(uint64_t number) {
  const MutexLock lock(mutex_);
  while (!checkpoints_.empty() && checkpoints_.back().is.number > number) drop(checkpoints_.end() - 1);
}

void Checkpoints::await_restore() {
  const MutexLock lock(mutex_);
  awaits_restore_ = !checkpoints_.empty();
}

void Checkpoints::drop_all() {
  const MutexLock lock(mutex_);
  while (!checkpoints_.empty()) drop(checkpoints_.end() - 1);
  awaits_restore_ = false;
}

void Checkpoints::drop_pending() noexcept {
  const MutexLock lock(mutex_);
  for (size_t i = checkpoints_.size(); i-- > 0;) {
    if (!checkpoints_[i].is_pending) continue;
    try {
      drop(checkpoints_.begin() + static_cast<ptrdiff_t>(i));
    } catch (const std::exception&) {
      // It's kept: the process that opens the table next finds its manifest, or doesn't.
    }
  }
}

}  // namespace embstore::log
