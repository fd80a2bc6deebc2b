// Tests of the parts of a medium: copies from mapped files, reads by io_uring, files whose sync failed.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "files/file.h"
#include "testing/child.h"
#include "testing/descriptor_limit.h"
#include "testing/failing_memory.h"
#include "testing/files.h"
#include "testing/tests.h"
#include "testing/watched_calls.h"
#include "tiers/medium/batch_reader.h"
#include "tiers/medium/guarded_copy.h"
#include "tiers/medium/io_uring_pool.h"
#include "tiers/medium/mapping.h"

namespace embstore::medium::testing {
namespace {

TEST(a_copy_of_missing_pages_returns_false) {
  const TemporaryDirectory directory;
  const std::string path = directory / "pages";
  put_file(path, std::string(2 * 4096, 'x'));
  const int descriptor = open(path.c_str(), O_RDONLY);
  void* const pages = mmap(nullptr, 2 * 4096, PROT_READ, MAP_SHARED, descriptor, 0);
  check(pages != MAP_FAILED && truncate(path.c_str(), 4096) == 0, "the pages can't be made");
  catch_bus_errors();
  struct Copy {
    const std::byte* from;
    volatile std::byte last;
  };
  const auto reads = [&](size_t page) {
    Copy copy{static_cast<const std::byte*>(pages) + page * 4096, {}};
    const bool came_to_its_end = guarded_copy(
        [](void* argument, GuardedRange& range) {
          Copy& of = *static_cast<Copy*>(argument);
          range.begin = of.from;
          range.end = of.from + 4096;
          of.last = of.from[4095];
        },
        &copy);
    check(!came_to_its_end || copy.last == std::byte{'x'}, "another byte was copied");
    return came_to_its_end;
  };
  check(reads(0) && !reads(1) && reads(0), "a page that is gone was read, or one that is there wasn't");
  munmap(pages, 2 * 4096);
  close(descriptor);
}

TEST(files_beyond_the_limit_of_mappings_have_none) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  put_file(path, std::string(4096, 'x'));
  const files::File file(files::system_file_calls(), path, O_RDONLY);
  std::deque<Mapping> mappings;
  for (size_t i = 0; i < Mapping::most(); ++i) {
    check(mappings.emplace_back(file, 4096).data() != nullptr, "there are fewer mappings than there may be");
  }
  check(Mapping(file, 4096).data() == nullptr, "there are more mappings than there may be");
  mappings.pop_back();
  check(Mapping(file, 4096).data() != nullptr, "a mapping that is gone counts");
}

#if !defined(__SANITIZE_THREAD__)  // its own handler interferes: one that gives up is called for ever
// Touches a page of a truncated file, as code outside the engine might.
void touch_a_missing_page(const std::string& path) {
  put_file(path, std::string(8192, 'x'));
  const int descriptor = open(path.c_str(), O_RDONLY);
  const void* page = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, descriptor, 0);
  check(page != MAP_FAILED && truncate(path.c_str(), 0) == 0, "the page can't be made");
  *static_cast<const volatile char*>(page);
}

void handle_bus_errors(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(SIGBUS, &action, nullptr);
}

TEST(bus_errors_of_other_code_are_passed_on) {
  const TemporaryDirectory directory;
  const std::string path = directory / "page";
  const auto end_with_42 = [](int) { _exit(42); };
  check(end_of_child(start_child([&] {
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          touch_a_missing_page(path);
        })) == 42,
        "an earlier handler isn't called");
  check(end_of_child(start_child([&] {
          catch_bus_errors();
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          touch_a_missing_page(path);
        })) == 42,
        "a later handler isn't called");
  check(end_of_child(start_child([&] {
          handle_bus_errors(end_with_42);
          catch_bus_errors();
          raise(SIGBUS);
        })) == 42,
        "a signal that was sent isn't handed on");
  // A handler like faulthandler's, which reinstalls the earlier handler and raises the signal again.
  check(end_of_child(start_child([&] {
          handle_bus_errors(SIG_DFL);
          catch_bus_errors();
          static struct sigaction before;
          sigaction(SIGBUS, nullptr, &before);
          struct sigaction action = {};
          action.sa_flags = SA_NODEFER;
          action.sa_handler = [](int signal) {
            sigaction(signal, &before, nullptr);
            raise(signal);
          };
          sigaction(SIGBUS, &action, nullptr);
          catch_bus_errors();
          touch_a_missing_page(path);
        })) == -SIGBUS,
        "the process goes on, or in circles");
}
#endif

TEST(io_uring_settles_what_it_cannot_read_by_pread) {
  if (resolve_auto_io_scheme().scheme != IoScheme::kIoUring) return;
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  std::string content(70000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 4);
  put_file(path, content);
  WatchedCalls calls;
  calls.before = [reads = 0](const FileCall& call) mutable {
    return call.kind == FileCall::kRead && ++reads % 3 == 0 ? EINTR : 0;
  };
  // A descriptor that the ring can't read: each of its requests fails, and pread reports why.
  const files::File file(calls, path, O_RDONLY);
  constexpr size_t kRequests = 300;
  std::vector<std::byte> bytes(kRequests * 1000);
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back({.file = &file,
                        .offset = i == 17 ? content.size() - 4 : i % 60 * 1000,
                        .data = bytes.data() + i * 1000,
                        .bytes = 1000,
                        .bytes_read = 0,
                        .failure = {}});
  }
  make_io_uring_reader()->read(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const ReadRequest& request = requests[i];
    if (i == 17) {
      check(request.bytes_read == 0 || request.bytes_read == 4, "bytes beyond the end were read");
      continue;
    }
    check(request.bytes_read == 1000, "a read is short");
    check(content.compare(request.offset, 1000, reinterpret_cast<const char*>(request.data), 1000) == 0,
          "other bytes were read");
  }
}

ptrdiff_t descriptors() {
  using Entries = std::filesystem::directory_iterator;
  return std::distance(Entries("/proc/self/fd"), Entries());
}

TEST(rings_give_way_to_files_where_descriptors_run_out) {
  if (resolve_auto_io_scheme().scheme != IoScheme::kIoUring) return;
  constexpr int kRings = 32;
  constexpr ptrdiff_t kMaxOfFew = 16;
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  put_file(path, "some");
  const ptrdiff_t others = descriptors();
  const DescriptorLimit many(1024);
  IoUringPool pool;
  const auto borrow_all = [&pool] {
    std::vector<IoUringPool::Loan> rings;
    for (int i = 0; i < kRings; ++i) rings.push_back(pool.borrow());
    return rings;
  };
  borrow_all();
  check(descriptors() - others == kRings, "another number of rings is open");
  const DescriptorLimit few(64);
  const files::File file(files::system_file_calls(), path, O_RDONLY);
  check(descriptors() - others <= kMaxOfFew, "idle rings keep their descriptors");
  // Rings whose descriptors were closed are opened again.
  const std::vector<IoUringPool::Loan> rings = borrow_all();
  for (const IoUringPool::Loan& ring : rings) {
    std::byte bytes[4];
    std::vector<ReadRequest> request = {
        {.file = &file, .offset = 0, .data = bytes, .bytes = 4, .bytes_read = 0, .failure = {}}};
    (*ring).read(request);
    check(request[0].bytes_read == 4 && bytes[3] == std::byte{'e'}, "a file isn't read");
  }
  check(descriptors() - others <= kMaxOfFew, "more descriptors are open than agreed");
}

TEST(a_ring_reads_without_asking_for_memory) {
  if (resolve_auto_io_scheme().scheme != IoScheme::kIoUring) return;
  const TemporaryDirectory directory;
  put_file(directory / "file", "some bytes");
  const files::File file(files::system_file_calls(), directory / "file", O_RDONLY);
  std::byte bytes[4];
  std::vector<ReadRequest> request = {
      {.file = &file, .offset = 5, .data = bytes, .bytes = 4, .bytes_read = 0, .failure = {}}};
  const std::unique_ptr<BatchReader> reader = make_io_uring_reader();
  {
    const FailingMemory none(0);
    reader->read(request);
  }
  check(request[0].bytes_read == 4 && bytes[0] == std::byte{'b'}, "the file isn't read");
}

TEST(a_ring_is_not_lost_if_memory_runs_out_around_it) {
  if (resolve_auto_io_scheme().scheme != IoScheme::kIoUring) return;
  std::optional<IoUringPool> pool(std::in_place);
  with_each_allocation_failing([&] { pool->borrow(); },
                               [&] {
                                 pool->borrow();
                                 pool.emplace();
                               });
}

TEST(a_file_whose_sync_failed_takes_nothing_more) {
  const TemporaryDirectory directory;
  int syncs = 0;
  WatchedCalls calls;
  calls.before = [&syncs](const FileCall& call) {
    return call.kind == FileCall::kSync && ++syncs == 1 ? EIO : 0;
  };
  files::File file(calls, directory / "file", O_RDWR | O_CREAT, {.for_the_medium = true});
  file.write_at("some", 4, 0);
  check_throws(ErrorKind::kStorage, "can't be brought to its medium", [&] { file.sync(); });
  check(file.sync_failed(), "the file isn't in doubt");
  check_throws(ErrorKind::kStorage, "only a new file can take its place", [&] { file.sync(); });
  check_throws(ErrorKind::kStorage, "only a new file can take its place", [&] { file.write_at("x", 1, 4); });
  check(syncs == 1, "a sync was tried again");
  char bytes[4];
  check(file.read_at(bytes, 4, 0) == 4, "the file can't be read");
}

}  // namespace
}  // namespace embstore::medium::testing
