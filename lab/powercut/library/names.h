// The names in the folders: which calls changed them, and which of the calls the medium has.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "chance.h"
#include "json.h"

namespace powercut {

struct Entry {
  uint64_t folder = 0;  // as Watch::identity() numbers it
  std::string name;

  bool operator<(const Entry& other) const {
    return folder != other.folder ? folder < other.folder : name < other.name;
  }
};

// One call, which the medium has whole or not at all, as file systems with a journal have it.
struct NameCall {
  enum class Kind : uint8_t { kAdd, kRemove, kRename, kExchange };

  Kind kind = Kind::kAdd;
  Entry entry;
  Entry to;             // of a rename
  uint64_t id = 0;      // of what `entry` named, or names now
  uint64_t other = 0;   // of what a rename took the place of; 0: of nothing
  char type = 'f';      // f, d, l, or o for other kinds, such as sockets; of `id`
  std::string target;   // of a symbolic link
  uint64_t synced = 0;  // of a rename between two folders: that which was synced already
  std::string told;     // for people
  bool durable = false;
};

class Names {
 public:
  explicit Names(bool in_order) : in_order_(in_order) {}

  void add(NameCall call);
  // A folder was synced: what was called on names in it is durable, and what that stands on. A rename from one folder to
  // another wants both. Says whether that made a difference.
  bool sync_folder(uint64_t folder);
  bool sync_all();
  // Of each call, whether the medium has it after a cut. Where calls wait, a call that needs another has it too.
  std::vector<bool> choose(Chance& chance, double probability) const;

  // Writes all calls, each with whether it reached the medium.
  void describe(Json& json, const std::vector<bool>& reached) const;

  bool in_order() const { return in_order_; }
  const std::vector<NameCall>& calls() const { return calls_; }

 private:
  void make_durable(size_t call, bool& changed);

  bool in_order_;
  std::vector<NameCall> calls_;
  std::vector<std::vector<size_t>> needs_;  // of each call, the earlier ones that it stands on
  std::map<Entry, size_t> by_entry_;        // the last call
  std::map<uint64_t, size_t> by_id_;        // the last call
  std::map<uint64_t, std::vector<size_t>> by_folder_;
  size_t durable_until_ = 0;  // every call before it is durable
};

}  // namespace powercut
