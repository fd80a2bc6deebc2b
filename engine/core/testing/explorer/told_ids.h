// Records the ids that the engine told movers to bring up.
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
using ToldIds = std::map<std::pair<const Mover*, uint64_t>, std::vector<int64_t>>;
ToldIds& told_ids();

}  // namespace embstore::explorer
