// Records the ids whose rows the engine had movers prefetch.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace embstore {
class Mover;
}

namespace embstore::explorer {

// The ids, by the mover of each explored partition and by turn.
using PrefetchedIds = std::map<std::pair<const Mover*, uint64_t>, std::vector<int64_t>>;
PrefetchedIds& prefetched_ids();

}  // namespace embstore::explorer
