#include "testing/explorer/left_out.h"

#include <iterator>

#include "testing/explorer/program.h"

namespace embstore::explorer {

std::string_view name_of(Synchronisation what) {
  constexpr std::string_view kNames[] = {
      "an event's record", "a stream's wait for an event",   "the host's wait",
      "an event's query",  "a stream's wait for a function", "a lock",
      "a use by the host", "a wait for the end of steps",    "a wait for the end of operations"};
  static_assert(std::size(kNames) == static_cast<size_t>(Synchronisation::kCount));
  return kNames[static_cast<size_t>(what)];
}

LeftOut& left_out() {
  static auto* const state = new LeftOut;
  return *state;
}

bool LeftOut::leaves_out(Synchronisation what, const void* caller) {
  if (!is_used()) return false;
  // The compiler duplicates the loop that looks for steps that have ended.
  const uint64_t place =
      what == Synchronisation::kQuery ? begin_of_function_at(place_of(caller)) : place_of(caller);
  const SyncSite called{what, place};
  if (looks_for_sites) ++seen[called];
  if (called != site) return false;
  ++times_;
  return true;
}

std::map<SyncSite, std::string> names_of(const std::map<SyncSite, uint64_t>& sites) {
  std::map<SyncSite, std::string> names;
  std::map<std::string, int> ordinals;
  for (const auto& [site, times] : sites) {
    std::string name(name_of(site.what));
    name.append(" in ").append(function_at(site.place));
    const int ordinal = ++ordinals[name];
    if (ordinal > 1) name.append(", number ").append(std::to_string(ordinal));
    names[site] = std::move(name);
  }
  return names;
}

}  // namespace embstore::explorer
