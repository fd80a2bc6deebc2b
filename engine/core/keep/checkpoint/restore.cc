#include "keep/checkpoint/restore.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_set>

#include "errors/error.h"
#include "keep/replacement.h"
#include "row/key_partition.h"
#include "threads/mutex.h"
#include "threads/shared_work.h"

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

// Calls work(next) on several threads at once if the file is large enough. next() reads and checks the
// thread's next block; it returns nothing if none is left.
template <class Work>
void share_blocks(Reader& reader, const Work& work) {
  constexpr size_t kAnyNumber = SIZE_MAX;
  const uint64_t blocks = reader.size_bytes() / kBlockBytes;  // approximately
  share_work(kAnyNumber, std::min<uint64_t>(HelpingThreads::max_threads(), blocks),
             [&](const auto& next_piece) {
               std::vector<std::byte> payload;
               work([&]() -> std::optional<Reader::Block> {
                 if (next_piece() == kAnyNumber) return std::nullopt;  // another thread has failed
                 return reader.next(payload);
               });
             });
}

// Orders a part of the work of threads that share a file's blocks: that part runs in the order of the blocks.
class Turns {
 public:
  explicit Turns(uint64_t first) : next_(first) {}

  // Calls `work` when it is the block's turn; doesn't call it if a block before it has failed.
  template <class Work>
  void take(uint64_t block, const Work& work) {
    MutexLock lock(mutex_);
    while (next_ != block && !ended_) changed_.wait(mutex_);
    if (ended_) return;
    lock.unlock();
    work();
    lock.lock();
    ++next_;
    changed_.notify_all();
  }
  // Ends all waits, so that no thread waits for the block of a thread that failed.
  void end() {
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  Condition changed_;
  uint64_t next_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

void add_removed_keys(const Reader::Block& block, Keys& removed) {
  for (size_t i = 0; i < block.count; ++i) removed.insert(key_at(block, i, sizeof(int64_t)));
}

// Returns whether a file has all keys of that partition, and no others.
bool has_exactly(const FileHeader& file, Partition partition) {
  return is_placed_by_hash(file) && file.partition_count == partition.count &&
         file.partition == partition.number;
}

// Returns those of a save's files that may have something of that partition.
std::span<const std::string> files_for(std::span<const std::string> files, Partition partition) {
  if (files.size() != partition.count) return files;
  const auto own = files.subspan(partition.number, 1);
  return has_exactly(Reader(own.front()).header(), partition) ? own : files;
}

// Converts the rows of a file's blocks that belong to the table's partition to the table's layout, and
// inserts them.
class RowReader {
 public:
  RowReader(Replacement& table, Partition partition, const FileHeader& file)
      : table_(table),
        partition_(partition),
        layout_(table.layout()),
        file_dim_(file.dim),
        file_slots_(file.slot_count),
        record_bytes_(file.record_bytes),
        batch_(layout_) {}

  void take(const Reader::Block& block, const Keys& removed_later) {
    batch_.clear();
    batch_.resize(block.count);
    size_t rows = 0;
    for (size_t i = 0; i < block.count; ++i) {
      const std::byte* const record = block.payload.data() + i * record_bytes_;
      RowRecord row;
      std::memcpy(&row, record, sizeof row);
      if (partition_of(row.key, partition_.count) != partition_.number) continue;
      if (!removed_later.empty() && removed_later.contains(row.key)) continue;
      batch_.header(rows) = {.key = row.key,
                             .frequency = row.frequency,
                             .version = row.version,
                             .served = row.served,
                             .stamp = row.stamp};
      fit(row.key, record + sizeof row, batch_.row(rows++));
    }
    batch_.resize(rows);
  }
  void put() {
    if (!batch_.empty()) table_.put(batch_);
  }

 private:
  // Cuts columns and slots that the table doesn't have, and gives those that the file lacks their initial
  // values.
  void fit(int64_t key, const std::byte* floats, float* row) const {
    const auto dim = static_cast<size_t>(layout_.dim());
    const auto slots = static_cast<size_t>(layout_.slot_count());
    if (dim == file_dim_ && slots <= file_slots_ && dim == layout_.block_floats()) {
      std::memcpy(row, floats, layout_.row_floats() * sizeof(float));
      return;
    }
    const size_t common = std::min(dim, file_dim_);
    const float* const initial = table_.initial_weights(key);
    for (size_t b = 0; b <= slots; ++b) {
      float* const block = row + b * layout_.block_floats();
      std::fill(block + dim, block + layout_.block_floats(), 0.0f);
      const bool kept = b <= file_slots_;
      if (kept) std::memcpy(block, floats + b * file_dim_ * sizeof(float), common * sizeof(float));
      for (size_t d = kept ? common : 0; d < dim; ++d) {
        block[d] = b == 0 ? initial[d] : table_.initial_slot_value(static_cast<int>(b) - 1);
      }
    }
  }

  Replacement& table_;
  const Partition partition_;
  const RowLayout layout_;
  const size_t file_dim_;
  const size_t file_slots_;
  const size_t record_bytes_;
  RowBatch batch_;
};

void put_waiting(const Reader::Block& block, const FileHeader& file, Replacement& table,
                 Partition partition) {
  if (block.kind == kWaitingKeys) {
    for (size_t i = 0; i < block.count; ++i) {
      const auto waiting = record_at<WaitingKeyRecord>(block, i, sizeof(WaitingKeyRecord));
      if (partition_of(waiting.key, partition.count) == partition.number) table.put_waiting_key(waiting);
    }
    return;
  }
  auto header = record_at<SketchHeader>(block, 0, 0);
  const std::span<const std::byte> counters = block.payload.subspan(sizeof header);
  // A sketch doesn't know its keys. So if partitions or shards differ from before, each new one has to take
  // all of the sketch.
  if (!has_exactly(file, partition)) {
    header.waiting_keys = (header.waiting_keys + partition.count - 1) / partition.count;
  }
  if (file.format_version > kSketchesOfOtherShards) return table.put_sketch(header, counters);
  const uint32_t shard = header.shard;
  for (header.shard = 0; header.shard < kShards; ++header.shard) {
    SketchHeader part = header;
    if (part.shard != shard) part.waiting_keys = 0;  // all of them are counted in one shard
    table.put_sketch(part, counters);
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

// Throws if a key is in the file of another partition: no partition would restore it.
void verify_partition(const Reader& reader, const Reader::Block& block) {
  const FileHeader& file = reader.header();
  if (!is_placed_by_hash(file)) return;  // a restore of such files reads every file
  size_t stride = 0;
  switch (block.kind) {
    case kRows: stride = file.record_bytes; break;
    case kRemovedKeys: stride = sizeof(int64_t); break;
    case kWaitingKeys: stride = sizeof(WaitingKeyRecord); break;
    default: return;
  }
  for (size_t i = 0; i < block.count; ++i) {
    const int64_t key = key_at(block, i, stride);
    if (partition_of(key, file.partition_count) == file.partition) continue;
    throw Error(ErrorKind::kCheckpoint,
                reader.path() + ": has key " + std::to_string(key) + ", which isn't of its partition, " +
                    std::to_string(file.partition) + " of " + std::to_string(file.partition_count) +
                    ": whoever wrote it placed keys in another way");
  }
}

// Returns what keys without a row read when a save was made; empty if the save is from before saves kept
// that. These are the first blocks of the save's first file.
std::vector<float> initial_rows(Reader& first_file) {
  std::vector<float> values;
  while (first_file.next_kind() == kInitialRows) {
    const auto block = first_file.next();
    const size_t before = values.size();
    values.resize(before + block->payload.size() / sizeof(float));
    std::memcpy(values.data() + before, block->payload.data(), block->payload.size());
  }
  return values;
}

// Returns about as many rows as a save has of the partition, and seldom fewer.
uint64_t max_rows(std::span<const std::string> files, Partition partition) {
  uint64_t rows = 0;
  for (const std::string& path : files) {
    const Reader reader(path);
    rows += has_exactly(reader.header(), partition) ? reader.max_rows() : reader.max_rows() / partition.count;
  }
  return rows;
}

// Tells the table in advance which ranks are the highest, since files have rows in any order. In a chain of
// several saves it is unknown yet which rows count.
void expect_ranks(Replacement& table, Partition partition, const Chain& chain, uint64_t rows) {
  constexpr size_t kMaxSampled = size_t{1} << 16;
  if (!table.has_lower_tiers() || chain.size() != 1) return;
  const std::span<const std::string> files = files_for(chain.front(), partition);
  const size_t step = rows / kMaxSampled + 4;
  std::vector<Rank> sample;
  for (const std::string& path : files) {
    Reader(path).sample_rows(step, [&](const RowRecord& row) {
      if (partition_of(row.key, partition.count) != partition.number) return;
      sample.push_back(table.rank_of(row.frequency + row.served, row.stamp));
    });
  }
  table.set_expected_ranks(std::move(sample), step);
}

}  // namespace

void restore_files(Replacement& table, Partition partition, const Chain& chain, bool waiting_keys) {
  if (chain.empty()) return;  // the table is to be left empty
  Reader first(chain.back().front());
  if (const auto initial = initial_rows(first); !initial.empty()) {
    table.replace_initial_rows(initial, first.header().dim);
  }
  // A full save comes last in the chain. Incremental ones add few rows to it.
  const uint64_t expected_rows = max_rows(files_for(chain.back(), partition), partition);
  table.expect_rows(expected_rows);
  expect_ranks(table, partition, chain, expected_rows);
  Keys removed_later;
  for (size_t save = 0; save < chain.size(); ++save) {
    Mutex mutex;
    Keys removed;  // guarded by `mutex`
    for (const std::string& path : files_for(chain[save], partition)) {
      std::optional<Reader> other;
      Reader& reader = &path == &chain.back().front() ? first : other.emplace(path);
      const auto put = [&](const Reader::Block& block, RowReader& rows) {
        switch (block.kind) {
          case kRows: rows.put(); break;
          case kRemovedKeys: {
            const MutexLock lock(mutex);
            add_removed_keys(block, removed);
            break;
          }
          case kInitialRows: break;  // of an incremental save
          default:
            // The newest save has all waiting keys, incremental or not.
            if (save == 0 && waiting_keys) put_waiting(block, reader.header(), table, partition);
        }
      };
      // The order of rows that rank the same decides which of them are in the higher tier.
      const bool in_order = table.has_lower_tiers();
      Turns turns(reader.passed_blocks());
      share_blocks(reader, [&](const auto& next) {
        try {
          RowReader rows(table, partition, reader.header());
          while (const auto block = next()) {
            if (block->kind == kRows) rows.take(*block, removed_later);
            if (in_order) {
              turns.take(block->number, [&] { put(*block, rows); });
            } else {
              put(*block, rows);
            }
          }
        } catch (...) {
          turns.end();
          throw;
        }
      });
    }
    removed_later.merge(removed);
  }
}

VerifiedFile verify_file(const std::string& path, size_t partition_count) {
  Reader reader(path);
  Mutex mutex;
  VerifiedFile file{reader.header(), {}, std::vector<uint64_t>(partition_count), {}, {}};
  share_blocks(reader, [&](const auto& next) {
    std::vector<uint64_t> rows(partition_count);
    KeyRange keys;
    while (const auto block = next()) {
      if (block->kind == kSketch) {
        const MutexLock lock(mutex);
        verify_sketch(reader, *block, file.sketch_shapes);
      }
      verify_partition(reader, *block);
      if (block->kind != kRows) continue;
      for (size_t i = 0; i < block->count; ++i) {
        const int64_t key = key_at(*block, i, file.header.record_bytes);
        ++rows[partition_of(key, partition_count)];
        keys.add({key, key});
      }
    }
    const MutexLock lock(mutex);
    for (size_t p = 0; p < partition_count; ++p) file.rows[p] += rows[p];
    file.keys.add(keys);
  });
  file.summary = reader.summary();
  return file;
}

std::vector<uint64_t> count_rows(const Chain& chain, size_t partition_count) {
  std::vector<uint64_t> rows(partition_count);
  Keys newer;  // those that a newer save has a row of, or removed
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

void restore_table(TableParts& table, Partition partition, const Chain& chain, const TableState& state,
                   bool waiting_keys) {
  Replacement replacement(table);
  replacement.replace_all([&] {
    restore_files(replacement, partition, chain, waiting_keys);
    replacement.finish(state);
  });
}

}  // namespace embstore::checkpoint
