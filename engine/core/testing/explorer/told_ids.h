// The ids that the engine told movers to bring up.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace embstore::explorer {

// By turn, of the table that is explored.
std::map<uint64_t, std::vector<int64_t>>& told_ids();

}  // namespace embstore::explorer
