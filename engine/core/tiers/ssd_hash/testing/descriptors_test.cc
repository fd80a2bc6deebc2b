// Tables have more files than the process may have descriptors.
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "files/descriptor_cache.h"
#include "testing.h"

namespace embstore::ssd_hash::testing {
namespace {

const RowLayout kLayout(8, 1);

class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    check(getrlimit(RLIMIT_NOFILE, &before_) == 0, "the limit can't be asked for");
    rlimit few = before_;
    few.rlim_cur = most;
    check(setrlimit(RLIMIT_NOFILE, &few) == 0, "the limit can't be set");
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

SsdHashOptions tiny_files() {
  SsdHashOptions options = small_files();
  options.file_bytes = 20 << 10;  // of which the header is a fifth
  return options;
}

void write_keys(SsdHashTier& tier, PlainIndex& index, int64_t first, int64_t count, int64_t version) {
  std::vector<int64_t> keys(static_cast<size_t>(count));
  std::iota(keys.begin(), keys.end(), first);
  write_rows(tier, index, kLayout, keys, version);
}

void hundreds_of_files_run_within_64_descriptors(IoScheme scheme, bool keep_files, bool sync) {
  const TemporaryDirectory directory;
  const FewDescriptors few(64);
  SsdHashOptions options = tiny_files();
  options.io_scheme = scheme;
  options.keeps = keep_files ? Keeps::kFiles : Keeps::kNothing;
  options.sync = sync;
  PlainIndex index;
  {
    SsdHashTier tier("var", kLayout, directory / "rows", options);
    if (keep_files) tier.recover([](const RowBatch&, std::span<const Slot>) {});
    tier.start_compaction(index);
    write_keys(tier, index, 0, 40000, 1);
    check(tier.detailed_stats().files > 300, "too few files for this test");
    check_all(tier, index, kLayout);
    for (int64_t version = 2; version < 5; ++version) write_keys(tier, index, version * 5000, 20000, version);
    check_all(tier, index, kLayout);
    tier.drain();
    check(files::DescriptorCache::of_process().open_count() <= 16, "more descriptors are open than agreed");
    tier.close();
  }
  if (!keep_files) return;
  SsdHashTier tier("var", kLayout, directory / "rows", options);
  PlainIndex found;
  const RecoveryReport report = tier.recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < slots.size(); ++i) {
      found.put(rows.header(i).key, slots[i], checked_version(rows, i, rows.header(i).key));
    }
  });
  check(report.damaged + report.torn == 0 && found.size() == index.size(), "rows are missing");
  check_all(tier, found, kLayout);
}
void hundreds_of_files_run_within_64_descriptors() {
  hundreds_of_files_run_within_64_descriptors(IoScheme::kPread, false, false);
  hundreds_of_files_run_within_64_descriptors(IoScheme::kAuto, true, false);
  hundreds_of_files_run_within_64_descriptors(IoScheme::kPread, true, true);
  if (resolve_auto_io_scheme().scheme == IoScheme::kIoUring) {
    hundreds_of_files_run_within_64_descriptors(IoScheme::kIoUring, false, false);
  }
}

void threads_share_few_descriptors() {
  const TemporaryDirectory directory;
  const FewDescriptors few(64);
  SsdHashOptions options = tiny_files();
  options.io_scheme = IoScheme::kPread;
  SsdHashTier tier("var", kLayout, directory / "rows", options);
  PlainIndex index;
  write_keys(tier, index, 0, 12000, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) check_all(tier, index, kLayout);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void a_written_file_is_synced_before_its_descriptor_goes() {
  class CountedSyncs final : public files::FileCalls {
   public:
    int fdatasync(int descriptor) override {
      ++syncs;
      return files::FileCalls::fdatasync(descriptor);
    }
    std::atomic<int> syncs{0};
  };
  const TemporaryDirectory directory;
  const FewDescriptors few(64);
  CountedSyncs calls;
  std::vector<std::unique_ptr<files::File>> written;
  for (int i = 0; i < 40; ++i) {
    written.push_back(std::make_unique<files::File>(calls, directory / std::to_string(i), O_RDWR | O_CREAT,
                                                    files::FileUse{.for_the_medium = true}));
    written.back()->write_at("x", 1, 0);
  }
  check(calls.syncs >= 40 - 16, "files were closed that weren't synced");
  check(files::DescriptorCache::of_process().open_count() <= 17, "too many are open");
}

constexpr Test kTests[] = {
    {"hundreds_of_files_run_within_64_descriptors", hundreds_of_files_run_within_64_descriptors},
    {"threads_share_few_descriptors", threads_share_few_descriptors},
    {"a_written_file_is_synced_before_its_descriptor_goes",
     a_written_file_is_synced_before_its_descriptor_goes},
};

}  // namespace

std::span<const Test> descriptor_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
