// Checkpoints at random against a plain account of them.
#include <string>

#include "checkpoint_workload.h"

namespace embstore::ssd_hash::testing {
namespace {

// The medium isn't waited for: no machine goes down here.
class Unwaiting final : public files::FileCalls {
 public:
  int fdatasync(int) override { return 0; }
  int fsync(int) override { return 0; }
};

void run(SsdHashOptions options, uint64_t first_seed, uint64_t seeds) {
  Unwaiting calls;
  options.file_calls = &calls;
  for (uint64_t seed = first_seed; seed < first_seed + scenes(seeds); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    try {
      CheckpointWorkload workload(directory / "rows", seed, options);
      for (int step = 1; step <= 1200; ++step) {
        workload.step();
        if (step % 20 == 0) workload.expect();
        if (step % 150 == 0) workload.restart();
      }
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  tested_case().clear();
}

void random_checkpoints_by_what_is_quickest() { run(checkpoint_options(), 1, 10); }
void random_checkpoints_by_calls_past_the_page_cache() {
  SsdHashOptions options = checkpoint_options();
  options.direct = true;
  run(options, 100, 3);
}
void random_checkpoints_with_a_compaction_thread() {
  SsdHashOptions options = checkpoint_options();
  options.compaction = CompactionMode::kOwnThread;
  run(options, 200, 10);
}

constexpr Test kTests[] = {
    {"random_checkpoints_by_what_is_quickest", random_checkpoints_by_what_is_quickest},
    {"random_checkpoints_by_calls_past_the_page_cache", random_checkpoints_by_calls_past_the_page_cache},
    {"random_checkpoints_with_a_compaction_thread", random_checkpoints_with_a_compaction_thread},
};

}  // namespace

std::span<const Test> checkpoint_random_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
