// Runs one scenario repeatedly; in each run another system call on a file fails once.
#include <cstdio>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "table.h"
#include "testing/failing_calls.h"

namespace embstore::log::testing {
namespace {

// Repeats `step` if it fails, which it may once.
template <class Step>
void with_one_retry(const FailingCalls& calls, const Step& step) {
  const bool struck_before = calls.has_failed();
  try {
    step();
  } catch (const Error& error) {
    check(error.kind() == ErrorKind::kStorage || error.kind() == ErrorKind::kDamagedRows, error.what());
    check(!struck_before && calls.has_failed(),
          std::string("there is an error without a fault: ") + error.what());
    step();
  }
}

// Calls of one thread, which records which of them are reads and writes.
class NotedCalls final : public FailingCalls {
 public:
  using FailingCalls::FailingCalls;

  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    reads.insert(calls());
    return FailingCalls::pread(descriptor, data, bytes, offset);
  }
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
    writes.insert(calls());
    return FailingCalls::pwrite(descriptor, data, bytes, offset);
  }

  std::set<int64_t> reads;
  std::set<int64_t> writes;
};

void run(SsdHashOptions options, NotedCalls& calls) {
  const TemporaryDirectory directory;
  options.file_bytes = 32 << 10;
  options.io_scheme = IoScheme::kPread;
  options.file_calls = &calls;
  const bool durable = options.keeps_checkpoints;
  const auto retried = [&](const auto& step) { with_one_retry(calls, step); };
  std::map<uint64_t, Versions> had;
  std::optional<FileTable> table;
  const auto open = [&] { table.emplace(directory.path(), options); };
  const auto close = [&] {
    if (durable) table->checkpoints->drop_pending();
    table->tier->close();
  };
  retried(open);
  std::mt19937_64 random(7);
  for (int64_t step = 1; step <= 14; ++step) {
    const auto first = static_cast<int64_t>(random() % 500);
    // All or nothing: a write that failed left every row as it was.
    retried([&] {
      const uint64_t rows = table->tier->stats().rows;
      try {
        table->write(first, 400, step);
      } catch (const Error&) {
        check(table->tier->stats().rows == rows, "a write that failed took places");
        throw;
      }
    });
    if (step % 5 == 0) table->erase(keys_from(first, 150));
    table->tier->compact();
    if (step % 4 == 0) retried([&] { table->tier->drain(); });
    retried([&] { table->check_rows(); });
    if (!durable || step % 3 != 0) continue;
    uint64_t number = 0;
    retried([&] { number = table->begin(); });
    had[number] = table->versions();
    retried([&] { table->write(first, 10, step); });
    retried([&] { table->commit(number); });
    if (number < 3) continue;
    retried([&] { table->checkpoints->drop(number - 2); });
    had.erase(number - 2);
  }
  retried([&] { table->check_space(); });
  check(table->tier->detailed_stats().compacted_files > 0, "nothing was compacted");
  retried(close);
  if (durable) {
    retried(open);
    for (auto last = had.rbegin(); last != had.rend(); ++last) {
      retried([&] { table->restore(last->first, 1); });
      retried([&] { table->check_rows(); });
      check(table->versions() == last->second, "a checkpoint has other rows");
    }
    retried([&] { table->checkpoints->drop_all(); });
    table->erase_all();
    retried(close);
  }
  table.reset();
  // Files that couldn't be removed are removed by the next table.
  retried(open);
  table.reset();
  check(files_in(directory / "rows").empty(), "files stay");
  for (const std::string& file : files_in(directory / "manifests")) {
    check(file.find("checkpoint") == std::string::npos, "a manifest stays");
  }
}

void nothing_is_lost_whichever_call_fails(const SsdHashOptions& options) {
  NotedCalls all({INT64_MAX, Fault::kIoError});
  run(options, all);
  check(all.calls() > 100, "too few calls for this test");
  // Only reads and writes can be short, and a read needs no space: such runs would repeat others.
  const auto may_have = [&all](int64_t call, Fault fault) {
    const bool reads = all.reads.contains(call);
    return fault == Fault::kShort ? reads || all.writes.contains(call) : fault == Fault::kIoError || !reads;
  };
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kShort}) {
    for (int64_t call = 0; call < all.calls(); ++call) {
      if (!may_have(call, fault)) continue;
      tested_case() = "call " + std::to_string(call) + ", fault " + std::to_string(static_cast<int>(fault));
      try {
        NotedCalls calls({call, fault});
        run(options, calls);
        check(calls.has_failed(), "the call wasn't made");
      } catch (const std::exception& error) {
        fail(error.what());
      }
    }
  }
  tested_case().clear();
  std::printf("%lld calls, each failing in turn\n", static_cast<long long>(all.calls()));
}
TEST(nothing_is_lost_whichever_call_fails) { nothing_is_lost_whichever_call_fails(small_files()); }
TEST(no_checkpoint_is_lost_whichever_call_fails) {
  nothing_is_lost_whichever_call_fails(small_files_for_checkpoints());
}

}  // namespace
}  // namespace embstore::log::testing
