// A replacement of Mover::prefetch(): the linker directs calls from other files of the engine to it, and
// renames the original.
#include "testing/explorer/prefetched_ids.h"

#include <utility>

#include "movement/mover.h"

namespace embstore::explorer {

PrefetchedIds& prefetched_ids() {
  static auto* const ids = new PrefetchedIds;
  return *ids;
}

}  // namespace embstore::explorer

extern "C" {

void __real__ZN8embstore5Mover8prefetchEmSt6vectorIlSaIlEE(embstore::Mover* mover, uint64_t turn,
                                                           std::vector<int64_t> keys);
void __wrap__ZN8embstore5Mover8prefetchEmSt6vectorIlSaIlEE(embstore::Mover* mover, uint64_t turn,
                                                           std::vector<int64_t> keys) {
  if (!keys.empty()) embstore::explorer::prefetched_ids()[{mover, turn}] = keys;
  __real__ZN8embstore5Mover8prefetchEmSt6vectorIlSaIlEE(mover, turn, std::move(keys));
}

}  // extern "C"
