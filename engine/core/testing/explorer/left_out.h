// A synchronisation that is left out while the engine is explored: all calls at one place in its code.
//
// Places are found, not listed: by the address to which a call of a synchronisation in an explored schedule
// returns. So every synchronisation of the engine can be left out, new ones too.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace embstore::explorer {

enum class Synchronisation : uint8_t {
  kRecord,      // an event isn't recorded
  kStreamWait,  // a stream doesn't wait for an event
  kHostWait,    // the host doesn't wait for an event or a stream
  kQuery,       // an event counts as reached
  kFunction,    // the stream doesn't wait for a function of the host
  kLock,
  kHostUse,  // an operation doesn't say that it uses rows
  kFinish,   // a table that closes doesn't wait for steps
  kIdle,     // a table that closes doesn't wait for operations
  kCount,
};
std::string_view name_of(Synchronisation what);

struct SyncSite {
  Synchronisation what;
  uint64_t place;  // in the program, whatever its load address
  auto operator<=>(const SyncSite&) const = default;
};

class LeftOut {
 public:
  // The site that is left out, if any.
  std::optional<SyncSite> site;
  // Set to record sites in `seen`, with the number of calls of each.
  bool looks_for_sites = false;
  std::map<SyncSite, uint64_t> seen;

  // Called at each synchronisation with the address to which it returns. Returns whether to leave it out.
  bool is_used() const { return looks_for_sites || site; }
  bool leaves_out(Synchronisation what, const void* caller);
  // Returns how often a call was left out.
  uint64_t times() const { return times_; }

 private:
  uint64_t times_ = 0;
};
LeftOut& left_out();

// Returns names such as "a lock in embstore::HbmTier::sync_mirror_to, number 2", from the program's own
// symbol table. A site in a function without a symbol is named by its place.
std::map<SyncSite, std::string> names_of(const std::map<SyncSite, uint64_t>& sites);

}  // namespace embstore::explorer
