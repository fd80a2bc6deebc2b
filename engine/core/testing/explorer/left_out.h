// A synchronisation that the engine is explored without: every call that one place of its code makes.
//
// Places are found rather than listed: where an explored schedule calls a synchronisation, by the address to which the call
// returns. So whatever the engine synchronises by can be left out, and what is added to it as well.
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
  kIdle,     // likewise for operations
  kCount,
};
std::string_view name_of(Synchronisation what);

struct Site {
  Synchronisation what;
  uint64_t place;  // in the program, wherever it is loaded
  auto operator<=>(const Site&) const = default;
};

class LeftOut {
 public:
  // The one that is left out, if any.
  std::optional<Site> site;
  // Whether sites are to be kept in `seen`, with how often each was called.
  bool looks_for_sites = false;
  std::map<Site, uint64_t> seen;

  // Called at each synchronisation with the address to which it returns: whether it is the one that is left out.
  bool is_used() const { return looks_for_sites || site; }
  bool is_it(Synchronisation what, const void* caller);
  // How often it was left out.
  uint64_t times() const { return times_; }

 private:
  uint64_t times_ = 0;
};
LeftOut& left_out();

// "a lock in embstore::HbmTier::join(...), the 2nd": by the program's own table of symbols. Sites of functions that it hasn't
// are named by their place.
std::map<Site, std::string> names_of(const std::map<Site, uint64_t>& sites);

}  // namespace embstore::explorer
