#include "pmem_medium.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "testing/check.h"
#include "testing/files.h"
#include "threads/mutex.h"

namespace embstore::medium::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLineBytes = 64;

struct Mapping {
  std::string path;
  ino_t inode;  // a file may be renamed, and another may get its name
  std::byte* address;
  std::string durable;
};
struct Range {
  std::byte* address;
  size_t bytes;
  std::thread::id thread;  // only this thread can drain its writes
};

struct State {
  Mutex mutex;
  bool is_pmem GUARDED_BY(mutex);
  bool fails GUARDED_BY(mutex) = false;
  bool leaves_out_drains GUARDED_BY(mutex) = false;
  std::vector<Mapping> mappings GUARDED_BY(mutex);
  // The durable bytes of files that were mapped before: a process that ends doesn't drain its writes.
  std::map<ino_t, std::string> unmapped GUARDED_BY(mutex);
  std::vector<Range> undrained GUARDED_BY(mutex);  // written and flushed
  std::vector<Noted> notes GUARDED_BY(mutex);
  std::function<void()> before_call;
  bool is_calling = false;

  explicit State(bool persistent) : is_pmem(persistent) {}

  Mapping& mapping_of(const void* address) REQUIRES(mutex) {
    for (Mapping& mapping : mappings) {
      if (address >= mapping.address && address < mapping.address + mapping.durable.size()) return mapping;
    }
    fail("memory that isn't mapped is written");
  }
  void note(Call call, const void* address, size_t bytes) REQUIRES(mutex) {
    if (address == nullptr) {
      notes.push_back({call, "", 0, 0});
      return;
    }
    const Mapping& mapping = mapping_of(address);
    notes.push_back({call, mapping.path,
                     static_cast<size_t>(static_cast<const std::byte*>(address) - mapping.address), bytes});
  }
  // Adds whole lines, as a processor flushes.
  void add_undrained(const void* address, size_t bytes) REQUIRES(mutex) {
    const auto first = reinterpret_cast<uintptr_t>(address) / kLineBytes * kLineBytes;
    const auto end = reinterpret_cast<uintptr_t>(address) + bytes;
    undrained.push_back({reinterpret_cast<std::byte*>(first), end - first, std::this_thread::get_id()});
  }
  void keep(std::byte* address, size_t bytes) REQUIRES(mutex) {
    Mapping& mapping = mapping_of(address);
    const auto offset = static_cast<size_t>(address - mapping.address);
    std::memcpy(mapping.durable.data() + offset, address, std::min(bytes, mapping.durable.size() - offset));
  }
};

std::unique_ptr<State> state;

bool is_in(const std::string& directory, const std::string& path) {
  return fs::path(path).parent_path() == fs::path(directory);
}
ino_t inode_of(const std::string& path) {
  struct stat status{};
  check(stat(path.c_str(), &status) == 0, path + " can't be looked at");
  return status.st_ino;
}
void before_call() {
  if (!state->before_call || std::exchange(state->is_calling, true)) return;
  state->before_call();
  state->is_calling = false;
}

void* map_file(const char* path, size_t length, int flags, mode_t mode, size_t* mapped, int* is_pmem) {
  void* const address = libpmem().map_file(path, length, flags, mode, mapped, is_pmem);
  if (address == nullptr) return nullptr;
  const MutexLock lock(state->mutex);
  *is_pmem = state->is_pmem ? 1 : 0;
  Mapping mapping{path, inode_of(path), static_cast<std::byte*>(address),
                  std::string(static_cast<const char*>(address), *mapped)};
  if ((flags & LibPmem::kFileExcl) != 0) state->unmapped.erase(mapping.inode);  // left by a removed file
  const auto before = state->unmapped.find(mapping.inode);
  if (before != state->unmapped.end() && before->second.size() == *mapped) mapping.durable = before->second;
  state->mappings.push_back(std::move(mapping));
  return address;
}

int unmap(void* address, size_t length) {
  {
    const MutexLock lock(state->mutex);
    std::erase_if(state->mappings, [address](Mapping& mapping) {
      if (mapping.address != address) return false;
      state->mutex.assert_held();
      state->unmapped[mapping.inode] = std::move(mapping.durable);
      return true;
    });
    std::erase_if(state->undrained, [&](const Range& range) {
      return range.address >= address && range.address < static_cast<std::byte*>(address) + length;
    });
  }
  return libpmem().unmap(address, length);
}

void* memcpy_nodrain(void* to, const void* from, size_t length) {
  before_call();
  const MutexLock lock(state->mutex);
  state->note(Call::kWrite, to, length);
  std::memcpy(to, from, length);
  state->add_undrained(to, length);
  return to;
}

void drain() {
  before_call();
  const MutexLock lock(state->mutex);
  state->note(Call::kDrain, nullptr, 0);
  if (state->leaves_out_drains) return;
  std::erase_if(state->undrained, [](const Range& range) {
    if (range.thread != std::this_thread::get_id()) return false;
    state->mutex.assert_held();
    state->keep(range.address, range.bytes);
    return true;
  });
}

int msync(const void* address, size_t length) {
  before_call();
  const MutexLock lock(state->mutex);
  state->note(Call::kSync, address, length);
  if (state->fails) {
    errno = EIO;
    return -1;
  }
  state->keep(static_cast<std::byte*>(const_cast<void*>(address)), length);
  return 0;
}

const LibPmem kCalls = {
    .map_file = map_file,
    .unmap = unmap,
    .errormsg = [] { return libpmem().errormsg(); },
    .memcpy_nodrain = memcpy_nodrain,
    .drain = drain,
    .msync = msync,
    .has_auto_flush = [] { return 0; },
};

}  // namespace

PmemMedium::PmemMedium(bool is_pmem) {
  check(state == nullptr, "there are two media at a time");
  state = std::make_unique<State>(is_pmem);
}
PmemMedium::~PmemMedium() { state.reset(); }

const LibPmem& PmemMedium::calls() const { return kCalls; }

std::vector<Noted> PmemMedium::take_notes() {
  const MutexLock lock(state->mutex);
  return std::exchange(state->notes, {});
}

size_t PmemMedium::notes_so_far() const {
  const MutexLock lock(state->mutex);
  return state->notes.size();
}

void PmemMedium::fail_syncs(bool fail) {
  const MutexLock lock(state->mutex);
  state->fails = fail;
}

void PmemMedium::leave_out_drains(bool leave_out) {
  const MutexLock lock(state->mutex);
  state->leaves_out_drains = leave_out;
}

void PmemMedium::before_each_call(std::function<void()> call) { state->before_call = std::move(call); }

void PmemMedium::cut(const std::string& from, const std::string& to, uint64_t percent,
                     std::mt19937_64& random) const {
  const MutexLock lock(state->mutex);
  const auto write_left = [&](const std::string& path, std::string durable, const char* now) {
    for (size_t at = 0; at + kWordBytes <= durable.size(); at += kWordBytes) {
      if (std::memcmp(durable.data() + at, now + at, kWordBytes) == 0) continue;
      if (random() % 100 < percent) std::memcpy(durable.data() + at, now + at, kWordBytes);
    }
    put_file(fs::path(to) / fs::path(path).filename(), durable);
  };
  std::set<std::string> are_mapped;
  for (const Mapping& mapping : state->mappings) {
    are_mapped.insert(mapping.path);
    if (is_in(from, mapping.path)) {
      write_left(mapping.path, mapping.durable, reinterpret_cast<const char*>(mapping.address));
    }
  }
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string path = entry.path().string();
    const auto found = state->unmapped.find(inode_of(path));
    if (found == state->unmapped.end() || are_mapped.contains(path)) continue;
    std::string now = bytes_of(path);
    now.resize(found->second.size());
    write_left(path, found->second, now.data());
  }
}

}  // namespace embstore::medium::testing
