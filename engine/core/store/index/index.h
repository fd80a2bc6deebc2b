// The hash index of a table: key -> RowRef, in shards that are written independently (index_shard.h) and
// read without locks (index_reader.h).
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "row/key_hash.h"
#include "store/index/index_shard.h"
#include "threads/epochs.h"

namespace embstore {

class Index {
 public:
  explicit Index(Epochs& epochs) {
    for (int i = 0; i < kShards; ++i) {
      shards_[static_cast<size_t>(i)] = std::make_unique<IndexShard>(epochs, i);
    }
  }

  IndexShard& shard(int i) const { return *shards_[static_cast<size_t>(i)]; }

 private:
  std::array<std::unique_ptr<IndexShard>, kShards> shards_;
};

}  // namespace embstore
