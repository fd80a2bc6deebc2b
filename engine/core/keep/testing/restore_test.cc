// Restored rows lie as high as they rank, in as many places as there are. Also tests the files that they come
// from.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "keep/checkpoint/reader.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/failing_memory.h"
#include "testing/files.h"
#include "testing/tests.h"
#include "testing/watched_calls.h"

namespace embstore {
namespace {

constexpr int kDim = 2;
constexpr size_t kRows = 30'000;
constexpr uint64_t kFirstTierRows = 10'000;

// The ranks of a save's rows.
struct Ranks {
  const char* name;
  uint64_t frequencies;  // the number of different ones
  uint64_t stamps;
};
constexpr Ranks kRanks[] = {
    {"no two alike", 7, kRows}, {"all alike", 1, 1}, {"many alike", 3, 2}, {"a few hot", 2, 1}};

TEST(a_restore_fills_the_first_tier_with_the_rows_that_rank_highest) {
  for (const Ranks& ranks : kRanks) {
    tested_case() = ranks.name;
    const TemporaryDirectory directory;
    Table table({.name = "restored",
                 .dim = kDim,
                 .default_values = std::vector<float>(kDim),
                 .optimizer = "SGD",
                 .optimizer_params = {{"learning_rate", 0.1}},
                 .tiers = {{"DRAM", std::nullopt, kFirstTierRows * 16},
                           {"SSDHASH", directory / "rows", std::nullopt}}});
    std::mt19937_64 random(1);
    std::vector<RowHeader> headers(kRows);
    std::vector<uint64_t> stamps(kRows);
    std::iota(stamps.begin(), stamps.end(), 0u);
    std::shuffle(stamps.begin(), stamps.end(), random);
    checkpoint::Writer file(directory / "save", table.parts().layout, {});
    const std::vector<float> row(table.parts().layout.row_floats());
    for (size_t i = 0; i < kRows; ++i) {
      // With two frequencies, few rows have the higher one.
      const uint64_t draw = random() % (ranks.frequencies == 2 ? 100 : ranks.frequencies);
      headers[i] = {.key = static_cast<int64_t>(i),
                    .frequency = 1 + (ranks.frequencies == 2 ? draw == 0 : draw),
                    .version = 0,
                    .served = 0,
                    .stamp = 5 + stamps[i] % ranks.stamps};
      file.add_row(headers[i], row.data());
    }
    file.finish();
    table.restore({}, {{directory / "save"}}, TableState{}, /*waiting_keys=*/false);

    std::vector<int64_t> keys = keys_from(0, kRows);
    std::vector<int32_t> tiers(kRows);
    table.lookup_tier(keys, tiers.data());
    std::vector<Rank> above;
    std::vector<Rank> below;
    for (size_t i = 0; i < kRows; ++i) {
      const Rank rank = Rank::of(CacheStrategy::kLfu, headers[i].frequency, headers[i].stamp);
      (tiers[i] == 0 ? above : below).push_back(rank);
    }
    check(above.size() == kFirstTierRows, "the first tier has " + std::to_string(above.size()) + " rows");
    check(*std::min_element(above.begin(), above.end()) >= *std::max_element(below.begin(), below.end()),
          "a row lies below one that ranks lower");
  }
}

TEST(a_restore_that_runs_out_of_memory_leaves_all_rows_or_none) {
  constexpr int64_t kFew = 1000;
  const TemporaryDirectory directory;
  Table table(
      {.name = "restored",
       .dim = kDim,
       .default_values = std::vector<float>(kDim),
       .optimizer = "SGD",
       .optimizer_params = {{"learning_rate", 0.1}},
       .tiers = {{"DRAM", std::nullopt, kFew / 2 * 16}, {"SSDHASH", directory / "rows", std::nullopt}}});
  checkpoint::Writer file(directory / "save", table.parts().layout, {});
  const std::vector<float> row(table.parts().layout.row_floats());
  for (int64_t key = 0; key < kFew; ++key)
    file.add_row({.key = key, .frequency = 1, .version = 0, .served = 0, .stamp = 0}, row.data());
  file.finish();
  table.restore({}, {{directory / "save"}}, TableState{}, /*waiting_keys=*/false);
  bool has_failed = true;
  for (int64_t number = 0; has_failed; ++number) {
    try {
      const FailingMemory memory(number);
      table.restore({}, {{directory / "save"}}, TableState{}, /*waiting_keys=*/false);
      has_failed = memory.has_failed();
    } catch (const std::bad_alloc&) {
    }
    const uint64_t rows = table.row_count();
    check(rows == 0 || rows == kFew, [rows] { return "half a table is left: " + std::to_string(rows); });
  }
}

// Returns how many bytes this process has read, from files and everything else.
uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  check(static_cast<bool>(io >> name >> bytes) && name == "rchar:", "/proc/self/io doesn't begin with rchar");
  return bytes;
}

TEST(a_restore_reads_a_file_once) {
  const TemporaryDirectory directory;
  const std::string path = directory / "save";
  Table table({.name = "restored",
               .dim = kDim,
               .default_values = std::vector<float>(kDim),
               .optimizer = "SGD",
               .optimizer_params = {{"learning_rate", 0.1}},
               .tiers = {{"DRAM", std::nullopt, kRows * 16}}});
  checkpoint::Writer file(path, table.parts().layout, {});
  file.add_initial_rows(std::vector<float>(kRows * kDim, 0.5f));
  const std::vector<float> row(table.parts().layout.row_floats());
  for (size_t i = 0; i < kRows; ++i)
    file.add_row({.key = static_cast<int64_t>(i), .frequency = 1, .version = 0, .served = 0, .stamp = 0},
                 row.data());
  const uint64_t file_bytes = file.finish().size_bytes;

  const uint64_t before = bytes_read();
  table.restore({}, {{path}}, TableState{}, /*waiting_keys=*/false);
  const uint64_t read = bytes_read() - before;
  check(table.row_count() == kRows, "rows are missing");
  check(read < file_bytes + 4096,
        "a file of " + std::to_string(file_bytes) + " bytes took reading " + std::to_string(read));
}

// Returns whether a call opens a file for direct I/O, or writes to such a descriptor.
bool is_direct(const FileCall& call) {
  if (call.kind == FileCall::kOpen) return (call.flags & O_DIRECT) != 0;
  return call.kind == FileCall::kWrite && (fcntl(call.descriptor, F_GETFL) & O_DIRECT) != 0;
}

// Writes blocks of various lengths, most of which end within a block of the medium.
checkpoint::FileSummary write_blocks(const std::string& path, files::FileCalls& calls) {
  const RowLayout layout(/*dim=*/33, /*slot_count=*/1);  // with padding
  checkpoint::Writer file(path, layout, {}, calls);
  file.add_initial_rows(std::vector<float>(33 * 100, 0.5f));
  std::vector<float> row(layout.row_floats());
  int64_t key = 0;
  const auto add_rows = [&](int64_t end) {
    for (; key < end; ++key) {
      std::iota(row.begin(), row.end(), static_cast<float>(key));
      check(file.make_room_for_rows() > 0, "there is room for no row");
      file.add_row({.key = key, .frequency = 1, .version = 2, .served = 3, .stamp = 4}, row.data());
    }
  };
  const auto add_sketch = [&](size_t counters) {
    file.add_sketch({.counters = counters,
                     .hashes = 1,
                     .counter_bits = 8,
                     .waiting_keys = 0,
                     .shard = 0,
                     .shard_count = kShards},
                    std::vector<std::byte>(counters, std::byte{7}));
  };
  add_rows(20);
  add_sketch(1001);
  add_rows(12'000);
  add_sketch((size_t{3} << 20) + 13);
  add_sketch(4096 - sizeof(checkpoint::BlockHeader) - sizeof(checkpoint::SketchHeader));
  add_rows(30'000);
  for (int64_t waiting = 0; waiting < 100'000; ++waiting) file.add_waiting_key({waiting, 1, 2});
  return file.finish();
}

TEST(a_file_is_the_same_whichever_way_its_blocks_reach_it) {
  const TemporaryDirectory directory;
  std::string wanted;
  for (const int refused : {1'000'000, 0, 1, 2, 9}) {
    tested_case() = "direct I/O is refused from call " + std::to_string(refused);
    const std::string path = directory / std::to_string(refused);
    std::atomic<int> direct_calls{0};
    WatchedCalls calls;
    calls.before = [&](const FileCall& call) {
      return is_direct(call) && direct_calls++ >= refused ? EINVAL : 0;
    };
    const checkpoint::FileSummary summary = write_blocks(path, calls);
    const std::string bytes = bytes_of(path);
    if (wanted.empty()) {
      // The second bound applies if the file system has direct I/O.
      check(direct_calls < 2 || direct_calls > 10, "too few blocks went past the page cache for this test");
      wanted = bytes;
    }
    check(bytes == wanted, "the file has other bytes");
    checkpoint::Reader reader(path);
    while (reader.next()) {
    }
    check(reader.summary().size_bytes == summary.size_bytes &&
              reader.summary().checksum == summary.checksum && bytes.size() == summary.size_bytes,
          "the summary is of another file");
    check(reader.summary().totals.rows == 30'000 && reader.summary().totals.sketches == 3,
          "something is missing");
  }
}

// A file with rows from write_blocks() that several threads read at once.
class LargeFile {
 public:
  LargeFile() { write_blocks(path_, files::system_file_calls()); }

  const std::string& path() const { return path_; }
  // Returns the first byte of each block.
  std::vector<uint64_t> blocks() const {
    std::vector<uint64_t> starts;
    std::ifstream file(path_, std::ios::binary);
    checkpoint::BlockHeader block;
    for (uint64_t at = sizeof(checkpoint::FileHeader);; at += sizeof block + block.payload_bytes) {
      file.seekg(static_cast<std::streamoff>(at));
      if (!file.read(reinterpret_cast<char*>(&block), sizeof block)) return starts;
      starts.push_back(at);
    }
  }

 private:
  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "save";
};

TableSpec spec_of_large_file() {
  return {.name = "restored",
          .dim = 33,
          .default_values = std::vector<float>(33),
          .optimizer = "Adagrad",
          .optimizer_params = {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}},
          .tiers = {{"DRAM", std::nullopt, size_t{32} << 20}}};
}

TEST(every_row_of_a_large_file_is_restored_as_it_is) {
  const LargeFile file;
  for (int round = 0; round < 5; ++round) {
    Table table(spec_of_large_file());
    table.restore({}, {{file.path()}}, TableState{}, /*waiting_keys=*/false);
    std::vector<int64_t> keys = keys_from(0, 30'000);
    check(table.row_count() == keys.size(), "rows are missing");
    std::vector<float> weights(keys.size() * 33);
    table.lookup(keys, weights.data(), LookUpPurpose::kEvaluation);
    std::vector<int64_t> versions(keys.size());
    table.versions(keys, versions.data());
    for (size_t i = 0; i < keys.size(); ++i) {
      check(versions[i] == 2, "a version is another");
      for (size_t d = 0; d < 33; ++d) {
        check(weights[i * 33 + d] == static_cast<float>(i + d),
              "row " + std::to_string(i) + " has other weights");
      }
    }
  }
}

// All rows of the file rank the same, so that only their order decides which of them are in the higher tier.
TEST(a_restore_puts_rows_that_rank_alike_in_the_same_tiers_every_time) {
  const LargeFile file;
  const TemporaryDirectory directory;
  TableSpec spec = spec_of_large_file();
  spec.tiers = {{"DRAM", std::nullopt, size_t{2} << 20}, {"SSDHASH", directory / "rows", std::nullopt}};
  std::vector<int64_t> keys = keys_from(0, 30'000);
  std::vector<int32_t> wanted;
  for (int round = 0; round < 6; ++round) {
    Table table(spec);
    table.restore({}, {{file.path()}}, TableState{}, /*waiting_keys=*/false);
    check(table.row_count() == keys.size(), "rows are missing");
    std::vector<int32_t> tiers(keys.size());
    table.lookup_tier(keys, tiers.data());
    if (wanted.empty()) wanted = tiers;
    check(std::count(tiers.begin(), tiers.end(), 0) > 0, "the first tier is empty");
    check(tiers == wanted, "rows lie elsewhere than after another restore");
    table.close();
  }
}

TEST(an_error_says_where_a_large_file_is_damaged) {
  const LargeFile file;
  const std::vector<uint64_t> blocks = file.blocks();
  check(blocks.size() > 10 && checkpoint::verify_file(file.path(), 2).summary.totals.rows == 30'000,
        "the file is too small for this test, or damaged");
  for (const uint64_t block : blocks) {
    tested_case() = "the block at byte " + std::to_string(block);
    const std::string place = "block at byte " + std::to_string(block) + " is damaged";
    for (const uint64_t byte : {block, block + sizeof(checkpoint::BlockHeader) + 5}) {
      flip(file.path(), byte);
      check_throws(ErrorKind::kCheckpoint, place, [&] { checkpoint::verify_file(file.path(), 2); });
      flip(file.path(), byte);
    }
  }
}

TEST(a_file_that_ends_while_it_is_restored_leaves_the_table_empty) {
  const LargeFile file;
  Table table(spec_of_large_file());
  const std::vector<uint64_t> blocks = file.blocks();
  for (const size_t left : {blocks[blocks.size() / 2], blocks[3] + 100, blocks[1]}) {
    std::filesystem::resize_file(file.path(), left);
    check_throws(ErrorKind::kCheckpoint, "it is truncated",
                 [&] { table.restore({}, {{file.path()}}, TableState{}, /*waiting_keys=*/false); });
    check(table.row_count() == 0, "rows of a part of the file are left");
  }
}

}  // namespace
}  // namespace embstore
