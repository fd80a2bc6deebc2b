#include "checkpoint_workload.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "threads/mutex.h"

namespace embstore::ssd_hash::testing {
namespace {

// Records cross blocks, and several lie in one.
const RowLayout kLayout(9, 1);

std::vector<CheckpointName> names_of(const std::map<uint64_t, CheckpointWorkload::Checkpoint>& checkpoints) {
  std::vector<CheckpointName> names;
  for (const auto& [number, checkpoint] : checkpoints) names.push_back(checkpoint.name);
  return names;
}

// Collects the rows of a checkpoint; `versions` as the headers say.
std::vector<Place> restored(SsdHashTier& tier, const CheckpointName& name, int threads, Versions& versions) {
  Mutex mutex;
  std::vector<Place> places;
  tier.restore(name, threads, [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
    const MutexLock lock(mutex);
    check(headers.size() == slots.size() && !slots.empty(), "a visit has no rows");
    for (size_t i = 0; i < slots.size(); ++i) {
      places.push_back({headers[i].key, slots[i]});
      check(versions.emplace(headers[i].key, headers[i].version).second, "a key has two rows");
    }
  });
  return places;
}

}  // namespace

SsdHashOptions checkpoint_options() {
  SsdHashOptions options;
  options.file_bytes = 32 << 10;
  options.buffer_bytes = 128 << 10;
  options.keeps = Keeps::kCheckpoints;
  options.optimizer = "adagrad";
  return options;
}

CheckpointId id_of(uint64_t number) {
  CheckpointId id{};
  std::mt19937_64 random(number);
  for (uint8_t& byte : id) byte = static_cast<uint8_t>(random());
  return id;
}

Versions versions_of(const PlainIndex& index) {
  Versions versions;
  for (const auto& [key, entry] : index.all()) versions.emplace(key, entry.version);
  return versions;
}

void restore_into(PlainIndex& index, SsdHashTier& tier, const RowLayout& layout, const CheckpointName& name,
                  int threads) {
  Versions versions;
  for (const Place& place : restored(tier, name, threads, versions)) {
    index.put(place.key, place.slot, versions.at(place.key));
  }
  check(tier.checkpoint_rows(name.number) == versions.size(), "the tier counts other rows of a checkpoint");
  check_all(tier, index, layout);
}

const RowLayout& CheckpointWorkload::layout() { return kLayout; }

CheckpointWorkload::CheckpointWorkload(const std::string& path, uint64_t seed, const SsdHashOptions& options)
    : path_(path), options_(options), random_(seed) {
  open();
}

CheckpointWorkload::~CheckpointWorkload() = default;

void CheckpointWorkload::open() {
  tier_ = std::make_unique<SsdHashTier>("var", kLayout, path_, options_);
  tier_->take_up(names_of(kept_));
  tier_->start_compaction(index_);
}

void CheckpointWorkload::step() {
  switch (below(24)) {
    case 0:
    case 1: return begin();
    case 2:
    case 3: return commit();
    case 4: return drop();
    case 5: return below(3) == 0 ? abandon() : commit();
    case 6: return below(4) == 0 ? restore() : tier_->compact();
    case 7: return tier_->drain();
    case 8: return tier_->flush();
    case 9:
    case 10:
    case 11: return erase();
    default: return write();
  }
}

std::vector<int64_t> CheckpointWorkload::some_keys(uint64_t most) {
  std::set<int64_t> keys;
  for (uint64_t i = below(most + 1); i > 0; --i) keys.insert(static_cast<int64_t>(below(kKeys)) - kKeys / 2);
  return {keys.begin(), keys.end()};
}

void CheckpointWorkload::write() {
  const std::vector<int64_t> keys = some_keys(below(4) == 0 ? 300 : 40);
  write_rows(*tier_, index_, kLayout, keys, ++version_);
}

void CheckpointWorkload::erase() {
  std::vector<Place> places;
  for (const int64_t key : some_keys(60)) {
    // Erased under the index's lock in a table; here a compaction may move the row in between.
    if (const auto entry = index_.take(key)) places.push_back({key, entry->slot});
  }
  tier_->erase(places);
  tier_->compact();
}

void CheckpointWorkload::erase_all() {
  std::vector<Place> places;
  for (const auto& [key, entry] : index_.all()) {
    if (const auto taken = index_.take(key)) places.push_back({key, taken->slot});
  }
  tier_->erase(places);
}

void CheckpointWorkload::begin() {
  if (pending_.size() + kept_.size() >= 5) return;
  const uint64_t number = std::max(greatest_, pending_.empty() ? 0 : pending_.rbegin()->first) + 1;
  tier_->begin_checkpoint(number);
  CheckpointName name{number, {}};
  for (uint8_t& byte : name.id) byte = static_cast<uint8_t>(random_());
  pending_[number] = {name, versions_of(index_)};
}

void CheckpointWorkload::commit() {
  if (pending_.empty()) return;
  const Checkpoint& oldest = pending_.begin()->second;
  is_committing_ = true;
  tier_->commit_checkpoint(oldest.name);
  if (between_commits_) between_commits_();
  is_committing_ = false;
  // The process may end before the pool has it; then its number is given again.
  if (below(20) == 0) return restart();
  check(tier_->checkpoint_rows(oldest.name.number) == oldest.versions.size(),
        "the tier counts other rows of a checkpoint");
  greatest_ = oldest.name.number;
  kept_.insert(pending_.extract(pending_.begin()));
}

void CheckpointWorkload::drop() {
  if (kept_.size() < 2) return;
  const auto dropped = std::next(kept_.begin(), static_cast<ptrdiff_t>(below(kept_.size())));
  const uint64_t number = dropped->first;
  kept_.erase(dropped);
  tier_->drop_checkpoint(number);
  check(tier_->checkpoint_rows(number) == 0, "a checkpoint that was dropped has rows");
}

void CheckpointWorkload::abandon() {
  if (pending_.empty()) return;
  const uint64_t number = pending_.rbegin()->first;
  pending_.erase(number);
  tier_->drop_checkpoint(number);
}

void CheckpointWorkload::restore() {
  if (kept_.empty()) return;
  while (!pending_.empty()) abandon();
  erase_all();
  if (below(2) == 0) tier_->drain();
  restore(std::next(kept_.begin(), static_cast<ptrdiff_t>(below(kept_.size())))->second);
}

// The pool drops the newer ones first.
void CheckpointWorkload::restore(const Checkpoint& chosen) {
  restore_into(index_, *tier_, kLayout, chosen.name, 1 + static_cast<int>(below(3)));
  check(versions_of(index_) == chosen.versions, "other rows came back than the checkpoint had");
  while (kept_.rbegin()->first > chosen.name.number) {
    const uint64_t number = kept_.rbegin()->first;
    kept_.erase(number);
    tier_->drop_checkpoint(number);
  }
}

void CheckpointWorkload::end_process() {
  tier_.reset();
  pending_.clear();
  for (const auto& [key, entry] : index_.all()) index_.take(key);
}

void CheckpointWorkload::restart() {
  end_process();
  open();
  if (kept_.empty()) return;
  if (below(8) == 0) {
    while (!kept_.empty()) {
      const uint64_t number = kept_.begin()->first;
      kept_.erase(number);
      tier_->drop_checkpoint(number);
    }
    return;
  }
  restore(std::next(kept_.begin(), static_cast<ptrdiff_t>(below(kept_.size())))->second);
}

void CheckpointWorkload::restart_in(const std::string& path, files::FileCalls& calls) {
  path_ = path;
  options_.file_calls = &calls;
  restart();
}

void CheckpointWorkload::expect() {
  check_all(*tier_, index_, kLayout);
  tier_->drain();
  const SsdHashStats stats = tier_->detailed_stats();
  check(stats.compaction_error.empty(), stats.compaction_error);
  check(stats.lost_records == 0 && stats.damaged_records == 0, "rows were lost");
  const uint64_t bound = 2 * stats.live_rows * stats.record_bytes + options_.buffer_bytes;
  check(stats.file_bytes - stats.held_bytes <= bound,
        "the files take " + std::to_string(stats.file_bytes) + " bytes, of which checkpoints alone hold " +
            std::to_string(stats.held_bytes) + "; the bound is " + std::to_string(bound));
  if (pending_.empty() && kept_.empty()) check(stats.held_bytes == 0, "a file is held for nobody");
  for (const auto& [number, checkpoint] : kept_) {
    check(tier_->checkpoint_rows(number) == checkpoint.versions.size(),
          "the tier counts other rows of a checkpoint");
  }
}

std::string fault_after_cut(const std::string& path,
                            const std::map<uint64_t, CheckpointWorkload::Checkpoint>& kept) {
  try {
    SsdHashOptions options = checkpoint_options();
    options.io_scheme = IoScheme::kPread;
    SsdHashTier tier("var", kLayout, path, options);
    tier.take_up(names_of(kept));
    RowBatch rows(kLayout);
    size_t checkpoint_files = 0;
    for (const std::string& file : files_in(path)) {
      checkpoint_files += file.find("/checkpoint-") != std::string::npos ? 1 : 0;
      if (file.ends_with(".new")) return "an unfinished file stays";
    }
    if (checkpoint_files != kept.size()) return "files of other checkpoints stay";
    for (const auto& [number, checkpoint] : kept) {
      Versions versions;
      const std::vector<Place> places = restored(tier, checkpoint.name, 1, versions);
      if (versions != checkpoint.versions) {
        return "checkpoint " + std::to_string(number) + " has other rows";
      }
      tier.read(places, rows);
      for (size_t i = 0; i < places.size(); ++i) {
        check(checked_version(rows, i, places[i].key) == versions.at(places[i].key), "a row is another");
      }
      tier.erase(places);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace embstore::ssd_hash::testing
