// Where restored rows lie: as high as they rank, in as many places as there are.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/tests.h"

namespace embstore {
namespace {

constexpr int kDim = 2;
constexpr size_t kRows = 30'000;
constexpr uint64_t kFirstTierRows = 10'000;

// What the rows of a save rank by.
struct Ranks {
  const char* name;
  uint64_t frequencies;  // different ones
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
    checkpoint::FileIdentity identity{};
    identity.partition_count = 1;
    checkpoint::Writer file(directory / "save", table.parts().layout, identity);
    const std::vector<float> row(table.parts().layout.row_floats());
    for (size_t i = 0; i < kRows; ++i) {
      // Of two frequencies, few rows have the higher one.
      const uint64_t draw = random() % (ranks.frequencies == 2 ? 100 : ranks.frequencies);
      headers[i] = {.key = static_cast<int64_t>(i),
                    .frequency = 1 + (ranks.frequencies == 2 ? draw == 0 : draw),
                    .version = 0,
                    .served = 0,
                    .stamp = 5 + stamps[i] % ranks.stamps};
      file.add_row(headers[i], row.data());
    }
    file.finish();
    table.restore({.number = 0, .count = 1}, {{directory / "save"}}, TableState{}, /*waiting_keys=*/false);

    std::vector<int64_t> keys(kRows);
    std::iota(keys.begin(), keys.end(), int64_t{0});
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

// How many bytes this process has read, from files and all else.
uint64_t bytes_read() {
  std::ifstream told("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  check(static_cast<bool>(told >> name >> bytes) && name == "rchar:",
        "/proc/self/io doesn't begin with rchar");
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
  checkpoint::FileIdentity identity{};
  identity.partition_count = 1;
  checkpoint::Writer file(path, table.parts().layout, identity);
  file.add_initial_rows(std::vector<float>(kRows * kDim, 0.5f));
  const std::vector<float> row(table.parts().layout.row_floats());
  for (size_t i = 0; i < kRows; ++i)
    file.add_row({.key = static_cast<int64_t>(i), .frequency = 1, .version = 0, .served = 0, .stamp = 0},
                 row.data());
  const uint64_t file_bytes = file.finish().size_bytes;

  const uint64_t before = bytes_read();
  table.restore({.number = 0, .count = 1}, {{path}}, TableState{}, /*waiting_keys=*/false);
  const uint64_t read = bytes_read() - before;
  check(table.row_count() == kRows, "rows are missing");
  check(read < file_bytes + 4096,
        "a file of " + std::to_string(file_bytes) + " bytes took reading " + std::to_string(read));
}

}  // namespace
}  // namespace embstore
