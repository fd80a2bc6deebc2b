#include "testing/explorer/history.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace embstore::explorer {
namespace {

constexpr size_t kMaxOperations = 64;  // in one schedule

// Searches for an order of one key's operations that explains what each of them saw.
class Search {
 public:
  Search(int64_t key, std::vector<const Operation*> operations, std::vector<uint64_t> before)
      : key_(key), operations_(std::move(operations)), before_(std::move(before)) {
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i]->ended != 0) must_ |= uint64_t{1} << i;
    }
  }
  bool finds_one() { return goes_on(0, {}); }

 private:
  // Searches on after the operations in `done`, which left the row in `state`.
  bool goes_on(uint64_t done, RowState state) {
    if ((done & must_) == must_) return true;
    if (!tried_.emplace(done, state).second) return false;
    for (size_t i = 0; i < operations_.size(); ++i) {
      const uint64_t bit = uint64_t{1} << i;
      if ((done & bit) != 0 || (before_[i] & ~done) != 0) continue;
      RowState after = state;
      if (happens(*operations_[i], after) && goes_on(done | bit, after)) return true;
    }
    return false;
  }

  bool happens(const Operation& operation, RowState& row) const {
    const auto found = operation.rows.find(key_);
    const RowState seen = found == operation.rows.end() ? RowState{} : found->second;
    switch (operation.kind) {
      case Operation::Kind::kApply:
        row.count += seen.count;
        row.version = seen.version;
        return true;
      case Operation::Kind::kRead: return seen.count == row.count;
      case Operation::Kind::kReadVersions: return seen.version == row.version;
      case Operation::Kind::kReadAll:
      case Operation::Kind::kMoment: return seen == row;
      case Operation::Kind::kDrop: {
        const bool had_row = row.count != 0;
        row = {};
        return operation.ended == 0 || had_row == (seen.count != 0);
      }
      case Operation::Kind::kClear: row = {}; return true;
      case Operation::Kind::kFill: row = seen; return true;
      case Operation::Kind::kSave:
        if (row.version < operation.min_version) row = {};
        return operation.ended == 0 || seen == row;
    }
    return false;
  }

  const int64_t key_;
  const std::vector<const Operation*> operations_;
  const std::vector<uint64_t> before_;  // by operation: those that must come first
  uint64_t must_ = 0;
  std::set<std::pair<uint64_t, RowState>> tried_;
};

}  // namespace

size_t History::begin(Operation operation) {
  operation.began = ++now_;
  operations_.push_back(std::move(operation));
  return operations_.size() - 1;
}

void History::end(size_t number) { operations_[number].ended = ++now_; }

std::vector<size_t> History::operations_of(int64_t key) const {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].concerns(key)) numbers.push_back(i);
  }
  return numbers;
}

// `before`: by operation number, the operations that must come before it beyond what their times say, as
// bits.
bool History::explains(int64_t key, const std::vector<uint64_t>& before) const {
  const std::vector<size_t> numbers = operations_of(key);
  std::vector<const Operation*> operations;
  std::vector<uint64_t> earlier(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Operation& operation = operations_[numbers[i]];
    operations.push_back(&operation);
    for (size_t j = 0; j < numbers.size(); ++j) {
      const Operation& other = operations_[numbers[j]];
      const bool is_earlier = other.ended != 0 && other.ended < operation.began;
      if (is_earlier || operation.after == numbers[j] || (before[numbers[i]] >> numbers[j] & 1) != 0)
        earlier[i] |= uint64_t{1} << j;
    }
  }
  return Search(key, std::move(operations), std::move(earlier)).finds_one();
}

std::optional<std::string> History::contradiction(const std::vector<int64_t>& keys) const {
  if (operations_.size() > kMaxOperations) return "more operations than are judged";
  const std::vector<uint64_t> time_alone(operations_.size());
  for (const int64_t key : keys) {
    if (!explains(key, time_alone)) return "no order explains " + described(key);
  }
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (!operations_[i].is_of_one_moment() || operations_[i].ended == 0) continue;
    std::vector<size_t> beside;
    for (size_t j = 0; j < operations_.size(); ++j) {
      const Operation& other = operations_[j];
      if (other.kind != Operation::Kind::kApply || other.rows.empty()) continue;
      const bool is_apart =
          (other.ended != 0 && other.ended < operations_[i].began) || operations_[i].ended < other.began;
      if (!is_apart) beside.push_back(j);
    }
    bool is_explained = false;
    for (uint64_t seen = 0; seen < uint64_t{1} << beside.size() && !is_explained; ++seen) {
      std::vector<uint64_t> before(operations_.size());
      for (size_t b = 0; b < beside.size(); ++b) {
        const bool is_seen = (seen >> b & 1) != 0;
        before[is_seen ? i : beside[b]] |= uint64_t{1} << (is_seen ? beside[b] : i);
      }
      is_explained =
          std::all_of(keys.begin(), keys.end(), [&](int64_t key) { return explains(key, before); });
    }
    if (!is_explained) return operations_[i].name + " saw a part of a batch: " + described(std::nullopt);
  }
  return std::nullopt;
}

std::string History::described(std::optional<int64_t> key) const {
  std::string text;
  if (key) text.append("key ").append(std::to_string(*key)).append(":");
  for (const Operation& operation : operations_) {
    if (key && !operation.concerns(*key)) continue;
    text.append("\n  [").append(std::to_string(operation.began)).append(", ");
    if (operation.ended != 0) text.append(std::to_string(operation.ended));
    text.append("] ").append(operation.name).append(":");
    for (const auto& [of, row] : operation.rows) {
      if (key && of != *key) continue;
      text.append(" ").append(std::to_string(of)).append(" × ").append(std::to_string(row.count));
      if (row.version >= 0) text.append(" (").append(std::to_string(row.version)).append(")");
    }
    if (operation.min_version >= 0) {
      text.append(" evicts below ").append(std::to_string(operation.min_version));
    }
  }
  return text;
}

}  // namespace embstore::explorer
