// The operations of threads on a table and what they saw, and whether some serial order of the operations
// explains it.
//
// The operations of each key are judged separately, since a look-up of several keys may see a batch for one
// key and not yet for another. An operation that sees all rows at one moment between two batches, as a save
// does, is judged over all keys: it must see each concurrent batch whole or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace embstore::explorer {

// The state of a key's row: how many gradients it got since it was inserted, and the step of the last one.
// Count 0 means that there is no row.
struct RowState {
  int64_t count = 0;
  int64_t version = -1;
  auto operator<=>(const RowState&) const = default;
};

struct Operation {
  enum class Kind : uint8_t {
    kApply,  // adds to counts, and sets versions
    kRead,   // saw counts
    kReadVersions,
    kReadAll,  // saw counts and versions
    kDrop,     // removes the rows
    kClear,    // removes all rows
    kFill,     // sets the rows after its kClear: a restore's second half
    kSave,     // removes rows with a version below `min_version`, then saw all
    kMoment,   // saw all rows as they were between two batches
  };
  // The rows by key: for an apply, the number of gradients; for operations that see rows, what they saw; for
  // a drop, count 1 if there was a row.
  std::map<int64_t, RowState> rows = {};
  Kind kind;
  std::string name;
  int64_t min_version = -1;
  std::optional<size_t> after = std::nullopt;  // the operation that must come first
  uint64_t began = 0;
  uint64_t ended = 0;  // 0: it hasn't ended, so it may have had its effect or not

  bool concerns(int64_t key) const {
    return is_of_one_moment() || kind == Kind::kClear || kind == Kind::kFill || rows.contains(key);
  }
  bool is_of_one_moment() const { return kind == Kind::kSave || kind == Kind::kMoment; }
};

class History {
 public:
  // Records the begin and end of operations, which may overlap. begin() returns the operation's number, for
  // end().
  size_t begin(Operation operation);
  void end(size_t number);
  Operation& at(size_t number) { return operations_[number]; }
  // Marks an operation as refused: it did and saw nothing.
  void note_refused(size_t number) {
    operations_[number].kind = Operation::Kind::kRead;
    operations_[number].rows.clear();
  }
  // Returns call(), which does all of the operation. If it throws, the operation counts as refused.
  template <class Call>
  auto within(size_t number, Call call) {
    try {
      return call();
    } catch (...) {
      note_refused(number);
      throw;
    }
  }
  // Marks an operation as abandoned: it may have had its effect, and saw nothing.
  void note_given_up(size_t number) { operations_[number].ended = 0; }

  // Returns what no serial order explains; nullopt if an order explains all. `keys` are all keys.
  std::optional<std::string> contradiction(const std::vector<int64_t>& keys) const;
  std::string described(std::optional<int64_t> key) const;

 private:
  bool explains(int64_t key, const std::vector<uint64_t>& before) const;
  std::vector<size_t> operations_of(int64_t key) const;

  uint64_t now_ = 0;
  std::vector<Operation> operations_;
};

}  // namespace embstore::explorer
