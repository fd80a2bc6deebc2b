#include "workload.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

namespace embstore::log::testing {

Workload::Workload(TableSite site, uint64_t seed) : site_(std::move(site)), random_(seed) { open(); }

void Workload::open() {
  table_ = site_.open();
  // A power cut may have come before a commit or drop was complete.
  for (const uint64_t number : table_->kept()) {
    if (const auto found = uncertain_.find(number); found != uncertain_.end()) certain_.insert(*found);
  }
  uncertain_.clear();
  std::vector<uint64_t> numbers;
  for (const auto& [number, account] : certain_) numbers.push_back(number);
  check(table_->kept() == numbers, "other checkpoints are kept than were committed");
  check(table_->checkpoints->awaits_restore() == !numbers.empty(),
        "checkpoints are awaited that aren't there");
}

void Workload::step() {
  changes_manifests_ = false;  // in case a commit failed
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
    default: return work();
  }
}

std::vector<int64_t> Workload::some_keys(uint64_t most) {
  std::set<int64_t> keys;
  for (uint64_t i = below(most + 1); i > 0; --i) keys.insert(static_cast<int64_t>(below(kKeys)) - kKeys / 2);
  return {keys.begin(), keys.end()};
}

uint64_t Workload::one_of(const Accounts& accounts) {
  return std::next(accounts.begin(), static_cast<ptrdiff_t>(below(accounts.size())))->first;
}

void Workload::begin() {
  if (pending_.size() + certain_.size() >= 5) return;
  Account account{.versions = table_->versions(), .slots = {}, .unwritten = {}};
  on_begin(account);
  pending_.emplace(table_->begin(), std::move(account));
}

void Workload::commit() {
  if (pending_.empty()) return;
  const uint64_t number = pending_.begin()->first;
  on_commit(pending_.begin()->second);
  uncertain_[number] = pending_.begin()->second;
  changes_manifests_ = true;
  // In another thread, whose drains don't cover this one's writes. If a sync fails, the commit may be
  // repeated.
  std::async(std::launch::async, [&] { table_->commit(number); }).get();
  changes_manifests_ = false;
  uncertain_.erase(number);
  certain_.insert(pending_.extract(number));
}

void Workload::drop(uint64_t number) {
  if (pending_.erase(number) == 0) uncertain_.insert(certain_.extract(number));
  changes_manifests_ = true;
  table_->checkpoints->drop(number);
  changes_manifests_ = false;
  uncertain_.erase(number);
}

void Workload::restore(uint64_t number) {
  while (!pending_.empty()) drop(pending_.rbegin()->first);
  forget_rows(/*with_process=*/false);
  const Versions expected = certain_.at(number).versions;
  while (certain_.rbegin()->first > number) uncertain_.insert(certain_.extract(certain_.rbegin()->first));
  table_->restore(number, 1 + static_cast<int>(below(3)));
  // An older checkpoint whose drop failed may still be there.
  uncertain_.erase(uncertain_.upper_bound(number), uncertain_.end());
  check(table_->versions() == expected, "other rows came back than the checkpoint had");
  table_->check_rows();
}

void Workload::restart() {
  // A killed process closes nothing.
  if (table_ != nullptr && below(2) == 0) table_->close();
  table_.reset();
  changes_manifests_ = false;
  pending_.clear();
  forget_rows(/*with_process=*/true);
  open();
  if (certain_.empty()) return;
  if (below(8) != 0) return restore(one_of(certain_));
  table_->checkpoints->drop_all();
  certain_.clear();
}

void Workload::restart_at(const TableSite& site) {
  site_ = site;
  restart();
}

void Workload::expect() {
  table_->check_rows();
  check_space();
  const auto kept = table_->checkpoints->kept();
  check(kept.size() == certain_.size(), "the table has another number of checkpoints");
  auto at = certain_.begin();
  for (const KeptCheckpoint& checkpoint : kept) {
    check(checkpoint.number == at->first && checkpoint.id == id_of(at->first) &&
              checkpoint.rows == at->second.versions.size(),
          "the table has another checkpoint");
    ++at;
  }
  check(table_->checkpoints->has_pending() == !pending_.empty(), "another number of checkpoints is pending");
}

namespace {

class FileWorkload final : public Workload {
 public:
  using Workload::Workload;

 private:
  void work() override {
    SsdHashTier& tier = *static_cast<FileTable&>(table()).tier;
    switch (below(16)) {
      case 0: return tier.drain();
      case 1:
      case 2:
      case 3: table().erase(some_keys(60)); return tier.compact();
      default: return table().write(some_keys(below(4) == 0 ? 300 : 40), next_version());
    }
  }
};

class PoolWorkload final : public Workload {
 public:
  using Workload::Workload;

 private:
  PoolTable& pool() { return static_cast<PoolTable&>(table()); }
  PoolTier& tier() { return *pool().tier; }

  void check_space() override {
    std::set<Slot> taken;
    for (const auto& [key, entry] : table().index.all()) taken.insert(entry.slot);
    for (const auto* accounts : {&certain(), &std::as_const(pending())}) {
      for (const auto& [number, account] : *accounts) {
        taken.insert(account.slots.begin(), account.slots.end());
      }
    }
    pool().check_taken(taken.size() + changed_.size());
  }

  void work() override {
    switch (below(16)) {
      case 0:
      case 1: return remove();
      case 2:
      case 3:
      case 4:
      case 5: return write();
      case 6:
      case 7:
      case 8: return write_back();
      default: return change();
    }
  }

  // Writes rows that come down unchanged since they went up.
  void write() {
    std::vector<int64_t> keys = some_keys(60);
    std::erase_if(keys, [this](int64_t key) { return changed_.contains(key); });
    table().write(keys, next_version());
  }

  // Writes a row that changed above, and adds it to the checkpoints that need it.
  Slot put(int64_t key, int64_t version, bool is_live) {
    RowBatch rows(kLayout);
    rows.resize(1);
    fill_row(rows, 0, key, version);
    const Slot slot = tier().write_claimed(rows.header(0), rows.row(0), is_live);
    uint64_t first = 0;
    for (auto& [number, account] : pending()) {
      const auto found = account.unwritten.find(key);
      if (found == account.unwritten.end()) continue;
      check(found->second == version, "the test is wrong: a version is gone that a checkpoint needs");
      if (first == 0) first = number;
      account.unwritten.erase(found);
      account.slots.insert(slot);
    }
    if (first != 0) tier().add_to_checkpoints(first, slot);
    return slot;
  }

  // Called before the row of `key` changes. Returns false if no slot can be claimed for a copy.
  bool write_for_checkpoints(int64_t key) {
    const bool needed = std::any_of(pending().begin(), pending().end(), [key](const auto& account) {
      return account.second.unwritten.contains(key);
    });
    if (!needed) return true;
    if (!tier().try_claim(1)) return false;
    put(key, changed_.at(key), /*is_live=*/false);
    return true;
  }

  void change() {
    for (const int64_t key : some_keys(30)) {
      if (!write_for_checkpoints(key)) return;
      if (!changed_.contains(key)) {
        if (!tier().try_claim(1)) return;
        table().erase(std::vector{key});
      }
      changed_[key] = next_version();
    }
    tier().fence();
  }

  void write_back() {
    for (const int64_t key : some_keys(300)) {
      if (const auto found = changed_.find(key); found != changed_.end()) write_back(*found);
    }
    tier().fence();
  }
  void write_back(std::pair<int64_t, int64_t> row) {
    table().index.put(row.first, put(row.first, row.second, /*is_live=*/true), row.second);
    changed_.erase(row.first);
  }

  void remove() {
    for (const int64_t key : some_keys(20)) {
      if (changed_.contains(key)) {
        if (!write_for_checkpoints(key)) return;
        changed_.erase(key);
        tier().give_claim_back(1);
      }
      table().erase(std::vector{key});
    }
    tier().fence();
  }

  void on_begin(Account& account) override {
    for (const auto& [key, entry] : table().index.all()) account.slots.insert(entry.slot);
    account.unwritten = changed_;
    account.versions.insert(changed_.begin(), changed_.end());
  }

  void on_commit(const Account& account) override {
    const Versions unwritten = account.unwritten;
    for (const auto& row : unwritten) {
      // The row may not have changed since; then it's a clean copy.
      check(changed_.at(row.first) == row.second,
            "the test is wrong: a changed row wasn't kept for a checkpoint");
      write_back(row);
    }
    if (!unwritten.empty()) tier().fence();  // only then, or it might hide a drain missing in write()
  }

  void forget_rows(bool with_process) override {
    if (!with_process) tier().give_claim_back(changed_.size());
    changed_.clear();
  }

  Versions changed_;  // rows above the pool, each with a claim
};

}  // namespace

std::unique_ptr<Workload> make_workload(const TableSite& site, uint64_t seed) {
  if (site.is_pool) return std::make_unique<PoolWorkload>(site, seed);
  return std::make_unique<FileWorkload>(site, seed);
}

std::string fault_after_cut(const TableSite& site, const Accounts& certain, const Accounts& uncertain) {
  try {
    const std::unique_ptr<Table> table = site.open();
    for (const char* const part : {"/rows", "/manifests"}) {
      for (const std::string& file : files_in(site.root + part)) {
        if (file.ends_with(".new")) return "an unfinished file stays";
      }
    }
    const std::vector<uint64_t> kept = table->kept();
    for (const auto& [number, account] : certain) {
      if (std::find(kept.begin(), kept.end(), number) == kept.end()) {
        return "checkpoint " + std::to_string(number) + " is gone";
      }
    }
    // Newest first.
    for (auto number = kept.rbegin(); number != kept.rend(); ++number) {
      const bool is_certain = certain.contains(*number);
      if (!is_certain && !uncertain.contains(*number)) return "a checkpoint is there that was dropped";
      const Versions& expected = (is_certain ? certain : uncertain).at(*number).versions;
      Versions versions;
      std::vector<Place> places;
      table->checkpoints->restore(
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
      table->rows().read(places, rows);
      for (size_t i = 0; i < places.size(); ++i) {
        check_row(rows, i, places[i].key, versions.at(places[i].key));
      }
      table->rows().erase(places);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace embstore::log::testing
