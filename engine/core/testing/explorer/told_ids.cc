// A replacement of Mover::want(): the linker directs calls from other files of the engine to it, and renames the
// original.
#include "testing/explorer/told_ids.h"

#include <utility>

#include "movement/mover.h"

namespace embstore::explorer {

ToldIds& told_ids() {
  static auto* const ids = new ToldIds;
  return *ids;
}

}  // namespace embstore::explorer

extern "C" {

void __real__ZN8embstore5Mover4wantEmSt6vectorIlSaIlEE(embstore::Mover* mover, uint64_t turn,
                                                       std::vector<int64_t> keys);
void __wrap__ZN8embstore5Mover4wantEmSt6vectorIlSaIlEE(embstore::Mover* mover, uint64_t turn,
                                                       std::vector<int64_t> keys) {
  if (!keys.empty()) embstore::explorer::told_ids()[{mover, turn}] = keys;
  __real__ZN8embstore5Mover4wantEmSt6vectorIlSaIlEE(mover, turn, std::move(keys));
}

}  // extern "C"
