#include "keep/checkpoint/restore.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_set>

#include "errors/error.h"
#include "keep/replacement.h"

namespace embstore::checkpoint {
namespace {

template <class Record>
Record record_at(const Reader::Block& block, size_t i, size_t stride) {
  Record record;
  std::memcpy(&record, block.payload.data() + i * stride, sizeof record);
  return record;
}

int64_t key_at(const Reader::Block& block, size_t i, size_t stride) {
  return record_at<int64_t>(block, i, stride);
}

using Keys = std::unordered_set<int64_t>;

void add_removed_keys(const Reader::Block& block, Keys& removed) {
  for (size_t i = 0; i < block.count; ++i) removed.insert(key_at(block, i, sizeof(int64_t)));
}

// Routes the rows of a file to the tables, brought to their layout.
class RowRouter {
 public:
  RowRouter(std::span<const std::unique_ptr<Replacement>> tables, const FileHeader& file)
      : tables_(tables),
        layout_(tables.front()->layout()),
        file_dim_(file.dim),
        file_slots_(file.slot_count),
        record_bytes_(file.record_bytes),
        batches_(tables.size(), RowBatch(layout_)) {}

  void route(const Reader::Block& block, const Keys& removed_later) {
    for (size_t i = 0; i < block.count; ++i) {
      const std::byte* const record = block.payload.data() + i * record_bytes_;
      RowRecord row;
      std::memcpy(&row, record, sizeof row);
      if (removed_later.contains(row.key)) continue;
      const size_t table = partition_of(row.key, tables_.size());
      RowBatch& batch = batches_[table];
      batch.resize(batch.size() + 1);
      batch.header(batch.size() - 1) = {.key = row.key,
                                        .frequency = row.frequency,
                                        .version = row.version,
                                        .served = row.served,
                                        .stamp = row.stamp};
      fit(row.key, record + sizeof row, batch.row(batch.size() - 1));
    }
    for (size_t t = 0; t < batches_.size(); ++t) {
      if (batches_[t].empty()) continue;
      tables_[t]->put(batches_[t]);
      batches_[t].clear();
    }
  }

 private:
  // Cuts what the table has no column or slot for; gives what the file lacks its initial value.
  void fit(int64_t key, const std::byte* floats, float* row) const {
    const auto dim = static_cast<size_t>(layout_.dim());
    const size_t common = std::min(dim, file_dim_);
    const Replacement& table = *tables_.front();
    const float* const initial = table.initial_weights(key);
    for (size_t b = 0; b <= static_cast<size_t>(layout_.slot_count()); ++b) {
      float* const block = row + b * layout_.block_floats();
      std::fill(block + dim, block + layout_.block_floats(), 0.0f);
      const bool kept = b <= file_slots_;
      if (kept) std::memcpy(block, floats + b * file_dim_ * sizeof(float), common * sizeof(float));
      for (size_t d = kept ? common : 0; d < dim; ++d) {
        block[d] = b == 0 ? initial[d] : table.initial_slot_value(static_cast<int>(b) - 1);
      }
    }
  }

  const std::span<const std::unique_ptr<Replacement>> tables_;
  const RowLayout layout_;
  const size_t file_dim_;
  const size_t file_slots_;
  const size_t record_bytes_;
  std::vector<RowBatch> batches_;
};

void put_waiting(const Reader::Block& block, const FileHeader& file,
                 std::span<const std::unique_ptr<Replacement>> tables) {
  if (block.kind == kWaitingKeys) {
    for (size_t i = 0; i < block.count; ++i) {
      const auto waiting = record_at<WaitingKeyRecord>(block, i, sizeof(WaitingKeyRecord));
      tables[partition_of(waiting.key, tables.size())]->put_waiting_key(waiting);
    }
    return;
  }
  auto header = record_at<SketchHeader>(block, 0, 0);
  const auto counters = block.payload.subspan(sizeof header);
  if (tables.size() == file.partition_count) {
    tables[file.partition]->put_sketch(header, counters);
    return;
  }
  // A sketch doesn't know its keys, so every new partition has to know them all.
  header.waiting_keys = (header.waiting_keys + tables.size() - 1) / tables.size();
  for (const auto& table : tables) table->put_sketch(header, counters);
}

void restore_files(std::span<const std::unique_ptr<Replacement>> tables, const Chain& chain,
                   bool waiting_keys) {
  Keys removed_later;
  for (size_t save = 0; save < chain.size(); ++save) {
    Keys removed;
    for (const std::string& path : chain[save]) {
      Reader reader(path);
      RowRouter router(tables, reader.header());
      while (const auto block = reader.next()) {
        switch (block->kind) {
          case kRows: router.route(*block, removed_later); break;
          case kRemovedKeys: add_removed_keys(*block, removed); break;
          default:
            // The newest save has all keys that wait, incremental or not.
            if (save == 0 && waiting_keys) put_waiting(*block, reader.header(), tables);
        }
      }
    }
    removed_later.merge(removed);
  }
}

void verify_sketch(const Reader& reader, const Reader::Block& block, std::vector<SketchShape>& shapes) {
  const auto header = record_at<SketchHeader>(block, 0, 0);
  const SketchShape shape{header.counters, header.hashes, header.counter_bits};
  if (header.shard_count != kShards || header.shard >= header.shard_count) {
    throw Error(ErrorKind::kCheckpoint, reader.path() + ": has a sketch of shard " +
                                            std::to_string(header.shard) + " of " +
                                            std::to_string(header.shard_count) + ", and this program has " +
                                            std::to_string(kShards) + " shards");
  }
  if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
}

}  // namespace

VerifiedFile verify_file(const std::string& path, size_t partition_count) {
  Reader reader(path);
  VerifiedFile file{reader.header(), {}, std::vector<uint64_t>(partition_count), {}};
  while (const auto block = reader.next()) {
    if (block->kind == kSketch) verify_sketch(reader, *block, file.sketch_shapes);
    if (block->kind != kRows) continue;
    for (size_t i = 0; i < block->count; ++i) {
      ++file.rows[partition_of(key_at(*block, i, file.header.record_bytes), partition_count)];
    }
  }
  file.summary = reader.summary();
  return file;
}

std::vector<uint64_t> count_rows(const Chain& chain, size_t partition_count) {
  std::vector<uint64_t> rows(partition_count);
  Keys newer;  // that a newer save has a row of, or removed
  for (size_t save = 0; save < chain.size(); ++save) {
    Keys removed;
    for (const std::string& path : chain[save]) {
      Reader reader(path);
      while (const auto block = reader.next()) {
        if (block->kind == kRemovedKeys) add_removed_keys(*block, removed);
        if (block->kind != kRows) continue;
        for (size_t i = 0; i < block->count; ++i) {
          const int64_t key = key_at(*block, i, reader.header().record_bytes);
          if (newer.contains(key)) continue;
          ++rows[partition_of(key, partition_count)];
          if (save + 1 < chain.size()) newer.insert(key);
        }
      }
    }
    newer.merge(removed);
  }
  return rows;
}

void restore_tables(std::span<Table* const> tables, const Chain& chain, const TableState& state,
                    bool waiting_keys) {
  std::vector<std::unique_ptr<Replacement>> replacements;
  for (Table* const table : tables) {
    replacements.push_back(std::make_unique<Replacement>(*table));
  }
  for (const auto& replacement : replacements) replacement->clear();
  try {
    restore_files(replacements, chain, waiting_keys);
  } catch (...) {
    for (const auto& replacement : replacements) replacement->clear();
    throw;
  }
  for (const auto& replacement : replacements) replacement->finish(state);
}

}  // namespace embstore::checkpoint
