#include "file_workload.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace embstore::log::testing {

FileWorkload::FileWorkload(std::string root, uint64_t seed, const SsdHashOptions& options)
    : root_(std::move(root)), options_(options), random_(seed) {
  open();
}

void FileWorkload::open() {
  table_ = std::make_unique<TestTable>(root_, options_);
  // The power may have gone before.
  for (const uint64_t number : table_->kept()) {
    if (const auto found = uncertain_.find(number); found != uncertain_.end()) certain_.insert(*found);
  }
  uncertain_.clear();
  std::vector<uint64_t> numbers;
  for (const auto& [number, versions] : certain_) numbers.push_back(number);
  check(table_->kept() == numbers, "other checkpoints are kept than were committed");
}

void FileWorkload::step() {
  is_committing_ = false;  // where a commit failed
  switch (below(24)) {
    case 0:
    case 1: return begin();
    case 2:
    case 3:
    case 4: return commit();
    case 5:
      if (certain_.size() > 1) drop(one_of(certain_));
      return;
    case 6:
      if (!pending_.empty()) drop(pending_.rbegin()->first);
      return;
    case 7:
      if (!certain_.empty() && below(4) == 0) restore(one_of(certain_));
      return;
    case 8: return table_->tier->drain();
    case 9:
    case 10:
    case 11: table_->erase(some_keys(60)); return table_->tier->compact();
    default: return table_->write(some_keys(below(4) == 0 ? 300 : 40), ++version_);
  }
}

std::vector<int64_t> FileWorkload::some_keys(uint64_t most) {
  std::set<int64_t> keys;
  for (uint64_t i = below(most + 1); i > 0; --i) keys.insert(static_cast<int64_t>(below(kKeys)) - kKeys / 2);
  return {keys.begin(), keys.end()};
}

uint64_t FileWorkload::one_of(const CheckpointVersions& checkpoints) {
  return std::next(checkpoints.begin(), static_cast<ptrdiff_t>(below(checkpoints.size())))->first;
}

void FileWorkload::begin() {
  if (pending_.size() + certain_.size() < 5) pending_[table_->begin()] = table_->versions();
}

void FileWorkload::commit() {
  if (pending_.empty()) return;
  const uint64_t number = pending_.begin()->first;
  uncertain_[number] = pending_.begin()->second;
  is_committing_ = true;
  table_->commit(number);  // where a sync fails it may be tried again
  is_committing_ = false;
  uncertain_.erase(number);
  certain_.insert(pending_.extract(number));
}

void FileWorkload::drop(uint64_t number) {
  if (pending_.erase(number) == 0) uncertain_.insert(certain_.extract(number));
  table_->checkpoints->drop(number);
  uncertain_.erase(number);
}

void FileWorkload::restore(uint64_t number) {
  while (!pending_.empty()) drop(pending_.rbegin()->first);
  const Versions expected = certain_.at(number);
  while (certain_.rbegin()->first > number) uncertain_.insert(certain_.extract(certain_.rbegin()->first));
  table_->restore(number, 1 + static_cast<int>(below(3)));
  uncertain_.clear();
  check(table_->versions() == expected, "other rows came back than the checkpoint had");
  table_->check_rows();
}

void FileWorkload::restart() {
  table_.reset();
  is_committing_ = false;
  pending_.clear();
  open();
  if (certain_.empty()) return;
  if (below(8) != 0) return restore(one_of(certain_));
  table_->checkpoints->drop_all();
  certain_.clear();
}

void FileWorkload::restart_in(const std::string& root, files::FileCalls& calls) {
  root_ = root;
  options_.file_calls = &calls;
  restart();
}

void FileWorkload::expect() {
  table_->check_rows();
  table_->check_space();
  if (pending_.empty() && certain_.empty()) {
    check(table_->tier->detailed_stats().held_bytes == 0, "a file is held for nobody");
  }
}

std::string fault_after_cut(const std::string& root, const CheckpointVersions& certain,
                            const CheckpointVersions& uncertain) {
  try {
    SsdHashOptions options = small_files_for_checkpoints();
    options.io_scheme = IoScheme::kPread;
    TestTable table(root, options);
    for (const char* const part : {"/rows", "/manifests"}) {
      for (const std::string& file : files_in(root + part)) {
        if (file.ends_with(".new")) return "an unfinished file stays";
      }
    }
    const std::vector<uint64_t> kept = table.kept();
    for (const auto& [number, versions] : certain) {
      if (std::find(kept.begin(), kept.end(), number) == kept.end()) {
        return "checkpoint " + std::to_string(number) + " is gone";
      }
    }
    for (auto number = kept.rbegin(); number != kept.rend(); ++number) {
      const bool is_certain = certain.contains(*number);
      if (!is_certain && !uncertain.contains(*number)) return "a checkpoint is there that was dropped";
      const Versions& expected = (is_certain ? certain : uncertain).at(*number);
      Versions versions;
      std::vector<Place> places;
      table.checkpoints->restore(
          *number, 1, [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
            for (size_t i = 0; i < slots.size(); ++i) {
              places.push_back({headers[i].key, slots[i]});
              versions.emplace(headers[i].key, headers[i].version);
            }
          });
      if (versions != expected || places.size() != versions.size()) {
        return "checkpoint " + std::to_string(*number) + " has other rows";
      }
      RowBatch rows(kLayout);
      table.tier->read(places, rows);
      for (size_t i = 0; i < places.size(); ++i) {
        check(checked_version(rows, i, places[i].key) == versions.at(places[i].key), "a row is another");
      }
      table.tier->erase(places);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace embstore::log::testing
