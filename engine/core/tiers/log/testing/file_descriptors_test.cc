// Tests of tables with more files than the process may have descriptors.
#include <fcntl.h>

#include <memory>
#include <string>
#include <thread>

#include "files/descriptor_cache.h"
#include "table.h"
#include "testing/descriptor_limit.h"

namespace embstore::log::testing {
namespace {

SsdHashOptions tiny_files(SsdHashOptions options, IoScheme scheme) {
  options.file_bytes = 20 << 10;  // a fifth of which is the header
  options.io_scheme = scheme;
  return options;
}

void hundreds_of_files_run_within_64_descriptors(SsdHashOptions options) {
  const TemporaryDirectory directory;
  UnwaitingCalls calls;
  options.file_calls = &calls;
  const DescriptorLimit few(64);
  Versions expected;
  {
    FileTable table(directory.path(), options);
    table.write(0, 40000, 1);
    check(table.tier->detailed_stats().files > 300, "too few files for this test");
    table.check_rows();
    for (int64_t version = 2; version < 5; ++version) table.write(version * 5000, 20000, version);
    table.check_rows();
    table.check_space();
    if (options.keeps_checkpoints) table.checkpoint();
    expected = table.versions();
    check(files::DescriptorCache::of_process().open_count() <= 16, "more descriptors are open than agreed");
  }
  if (!options.keeps_checkpoints) return;
  FileTable table(directory.path(), options);
  table.restore(1, 4);
  check(table.versions() == expected, "rows are missing");
  table.check_rows();
}
TEST(hundreds_of_files_run_within_64_descriptors) {
  hundreds_of_files_run_within_64_descriptors(tiny_files(small_files(), IoScheme::kPread));
  hundreds_of_files_run_within_64_descriptors(tiny_files(small_files_for_checkpoints(), IoScheme::kAuto));
  if (resolve_auto_io_scheme().scheme == IoScheme::kIoUring) {
    hundreds_of_files_run_within_64_descriptors(tiny_files(small_files(), IoScheme::kIoUring));
  }
}

TEST(threads_share_few_descriptors) {
  const TemporaryDirectory directory;
  const DescriptorLimit few(64);
  FileTable table(directory.path(), tiny_files(small_files(), IoScheme::kPread));
  table.write(0, 12000, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) table.check_rows();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(a_written_file_is_synced_before_its_descriptor_goes) {
  const TemporaryDirectory directory;
  const DescriptorLimit few(64);
  int syncs = 0;
  WatchedCalls calls;
  calls.before = [&syncs](const FileCall& call) {
    if (call.kind == FileCall::kSync) ++syncs;
    return 0;
  };
  std::vector<std::unique_ptr<files::File>> written;
  for (int i = 0; i < 40; ++i) {
    written.push_back(std::make_unique<files::File>(calls, directory / std::to_string(i), O_RDWR | O_CREAT,
                                                    files::FileUse{.for_the_medium = true}));
    written.back()->write_at("x", 1, 0);
  }
  check(syncs >= 40 - 16, "files were closed that weren't synced");
  check(files::DescriptorCache::of_process().open_count() <= 17, "too many are open");
}

}  // namespace
}  // namespace embstore::log::testing
