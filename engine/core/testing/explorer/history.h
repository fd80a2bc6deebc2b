// What threads did to a table and saw of it, and whether some serial order of it all gives what they saw.
//
// Each key's operations are judged by themselves, since a look-up of several keys may see a batch for one of them and not yet
// for another. What sees all rows at one moment between two batches, as a save does, is judged over all keys: each batch that
// was under way must be seen whole or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace embstore::explorer {

// What a key's row is: how many gradients it got since it came, and the step of the last. None: there is no row.
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
    kFill,     // sets the rows, after the kClear that it belongs to: what a restore does
    kSave,     // first removes rows whose version is less than `least_version`; then saw all
    kMoment,   // saw all rows as they were between two batches
  };
  // By key. Of an apply, how many gradients; of what sees, what was seen; of a drop, count 1 where there was a row.
  std::map<int64_t, RowState> rows = {};
  Kind kind;
  std::string name;
  int64_t least_version = -1;
  std::optional<size_t> after = std::nullopt;  // the operation before which it doesn't happen
  uint64_t began = 0;
  uint64_t ended = 0;  // 0: it hasn't, so that it may have had its effect or not

  bool concerns(int64_t key) const {
    return is_of_one_moment() || kind == Kind::kClear || kind == Kind::kFill || rows.contains(key);
  }
  bool is_of_one_moment() const { return kind == Kind::kSave || kind == Kind::kMoment; }
};

class History {
 public:
  // Operations that thread runs one after the other, or beside one another. The number says which it is in end().
  size_t begin(Operation operation);
  void end(size_t number);
  Operation& at(size_t number) { return operations_[number]; }
  // An operation that was refused, which did and saw nothing.
  void refused(size_t number) {
    operations_[number].kind = Operation::Kind::kRead;
    operations_[number].rows.clear();
  }
  // What `call` gives, which does all that the operation does: one that throws was refused.
  template <class Call>
  auto within(size_t number, Call call) {
    try {
      return call();
    } catch (...) {
      refused(number);
      throw;
    }
  }
  // One that was given up when it may have had its effect, and of which nothing was seen.
  void given_up(size_t number) { operations_[number].ended = 0; }

  // What no serial order explains; nothing where one explains all. `keys` are all that there are.
  std::optional<std::string> contradiction(const std::vector<int64_t>& keys) const;
  std::string described(std::optional<int64_t> key) const;

 private:
  bool explains(int64_t key, const std::vector<uint64_t>& before) const;
  std::vector<size_t> operations_of(int64_t key) const;

  uint64_t now_ = 0;
  std::vector<Operation> operations_;
};

}  // namespace embstore::explorer
