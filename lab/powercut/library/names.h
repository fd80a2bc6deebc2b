// The names in the folders: the calls that changed them, and which of these calls the medium has.
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
  uint64_t folder = 0;  // number from Watch::identity()
  std::string name;

  bool operator<(const Entry& other) const {
    return folder != other.folder ? folder < other.folder : name < other.name;
  }
};

// A call, which reaches the medium whole or not at all, as in file systems with a journal.
struct NameCall {
  enum class Kind : uint8_t { kAdd, kRemove, kRename, kExchange };

  Kind kind = Kind::kAdd;
  Entry entry;
  Entry to;             // of a rename
  uint64_t id = 0;      // of the file that `entry` named, or names now
  uint64_t other = 0;   // of the file that a rename replaced; 0: none
  char type = 'f';      // f, d, l, or o for other kinds, such as sockets; of `id`
  std::string target;   // of a symbolic link
  uint64_t synced = 0;  // of a rename between two folders: the one already synced
  std::string told;     // for people
  bool durable = false;
};

class Names {
 public:
  explicit Names(bool in_order) : in_order_(in_order) {}

  void add(NameCall call);
  // Makes calls on names in a synced folder durable, and the calls that they depend on. A rename between two
  // folders needs a sync of both. Returns whether that made a difference.
  bool sync_folder(uint64_t folder);
  bool sync_all();
  // Returns for each call whether the medium has it after a cut. A call comes with those that it needs.
  std::vector<bool> choose(Chance& chance, double probability) const;

  // Writes all calls, each with whether it reached the medium.
  void describe(Json& json, const std::vector<bool>& reached) const;

  bool in_order() const { return in_order_; }
  const std::vector<NameCall>& calls() const { return calls_; }

 private:
  void make_durable(size_t call, bool& changed);

  bool in_order_;
  std::vector<NameCall> calls_;
  std::vector<std::vector<size_t>> needs_;  // for each call, the earlier calls that it depends on
  std::map<Entry, size_t> by_entry_;        // the last call
  std::map<uint64_t, size_t> by_id_;        // the last call
  std::map<uint64_t, std::vector<size_t>> by_folder_;
  size_t durable_until_ = 0;  // all calls before it are durable
};

}  // namespace powercut
