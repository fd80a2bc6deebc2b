// libpmem's functions, as its manual describes them. Only followed files are persistent memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "stand_in.h"

namespace {

using powercut::Call;
using powercut::Computer;
using powercut::Kind;

constexpr int kFileCreate = 1 << 0, kFileExclusive = 1 << 1, kFileSparse = 1 << 2, kFileTemporary = 1 << 3;
constexpr int kAllFileFlags = kFileCreate | kFileExclusive | kFileSparse | kFileTemporary;
constexpr unsigned kNoDrain = 1U << 0, kNoFlush = 1U << 5;
constexpr unsigned kMajor = 1, kMinor = 1;

thread_local std::string error_message;

void* fail(const std::string& what, int reason) {
  error_message = what;
  errno = reason;
  return nullptr;
}

void flush(const char* function, void* caller, const void* address, size_t bytes) {
  Computer& computer = Computer::get();
  computer.refuse_child(function, address, bytes);
  if (!computer.has_begun() || bytes == 0) return;
  Call call(computer, function, caller);
  if (!call.does("flush")) return;
  const auto count =
      computer.flushes.flush(computer.mappings, computer.thread(), address, bytes, computer.next_sequence());
  if (count.lines > 0) call.tell_use("flush", count.clean == count.lines, count.lines, count.clean);
}

void drain(const char* function, void* caller) {
  Computer& computer = Computer::get();
  if (!computer.has_begun()) return;
  Call call(computer, Kind::kDrain, function, caller);
  if (!call.does("drain")) return;
  const bool useful = powercut::Flushes::drain(computer.thread());
  call.tell_use("drain", !useful);
}

// Flushes bytes copied by non-temporal stores, which count as useful even if the bytes were the same.
void after_copy(const char* function, void* caller, const void* address, size_t bytes, unsigned flags) {
  Computer& computer = Computer::get();
  if ((flags & kNoFlush) == 0) computer.refuse_child(function, address, bytes);
  if (!computer.has_begun()) return;
  if ((flags & kNoFlush) == 0 && bytes > 0) {
    Call call(computer, function, caller);
    if (call.does("flush")) {
      computer.flushes.flush(computer.mappings, computer.thread(), address, bytes, computer.next_sequence());
    }
  }
  if ((flags & (kNoDrain | kNoFlush)) == 0) drain(function, caller);
}

bool is_followed(const void* address, size_t bytes) {
  Computer& computer = Computer::get();
  if (!computer.has_begun()) return false;
  Call call(computer, "pmem_is_pmem", nullptr);
  const auto mapped = computer.mappings.find(address);
  return mapped && mapped->bytes >= bytes;
}

// Returns the file's length after applying the flags; 0 if that failed, with the reason in errno.
size_t prepare_length(void* caller, int descriptor, size_t bytes, int flags) {
  if ((flags & kFileCreate) == 0) {
    const off_t end = lseek(descriptor, 0, SEEK_END);
    if (end == 0) errno = EINVAL;
    return end > 0 ? static_cast<size_t>(end) : 0;
  }
  if (powercut::resize_file("pmem_map_file", caller, descriptor, static_cast<off_t>(bytes)) != 0) return 0;
  if ((flags & kFileSparse) == 0) {
    errno = powercut::allocate_file("pmem_map_file", caller, descriptor, 0, static_cast<off_t>(bytes));
    if (errno != 0) return 0;
  }
  return bytes;
}

}  // namespace

POWERCUT_EXPORT void* pmem_map_file(const char* path, size_t bytes, int flags, mode_t mode,
                                    size_t* mapped_bytes, int* is_pmem) {
  void* const caller = POWERCUT_CALLER;
  if ((flags & ~kAllFileFlags) != 0) return fail("invalid flag specified " + std::to_string(flags), EINVAL);
  if ((flags & kFileCreate) != 0 && static_cast<off_t>(bytes) <= 0) {
    return fail("invalid file length " + std::to_string(bytes), EINVAL);
  }
  if ((flags & kFileCreate) == 0 && (bytes != 0 || flags != 0)) {
    return fail("length and flags need PMEM_FILE_CREATE", EINVAL);
  }
  int open_flags = O_RDWR | O_CLOEXEC;
  if ((flags & kFileTemporary) != 0) {
    open_flags |= O_TMPFILE;
  } else if ((flags & kFileCreate) != 0) {
    open_flags |= O_CREAT | ((flags & kFileExclusive) != 0 ? O_EXCL : 0);
  }
  const int file = powercut::open_file("pmem_map_file", caller, AT_FDCWD, path, open_flags, mode);
  if (file < 0) return fail(std::string("open ") + path + ": " + std::strerror(errno), errno);
  const size_t length = prepare_length(caller, file, bytes, flags);
  void* address = MAP_FAILED;
  if (length > 0)
    address = powercut::map_memory(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int reason = errno;
  close(file);
  if (address == MAP_FAILED) {
    if ((flags & kFileCreate) != 0 && (flags & kFileExclusive) != 0) {
      powercut::remove_name("pmem_map_file", caller, AT_FDCWD, path, 0);
    }
    return fail(std::string(path) + ": can't be mapped: " + std::strerror(reason), reason);
  }
  if (mapped_bytes != nullptr) *mapped_bytes = length;
  if (is_pmem != nullptr) *is_pmem = is_followed(address, length) ? 1 : 0;
  return address;
}

POWERCUT_EXPORT int pmem_unmap(void* address, size_t bytes) { return powercut::unmap_memory(address, bytes); }

POWERCUT_EXPORT int pmem_is_pmem(const void* address, size_t bytes) {
  return is_followed(address, bytes) ? 1 : 0;
}
POWERCUT_EXPORT int pmem_has_hw_drain() { return 0; }
POWERCUT_EXPORT int pmem_has_auto_flush() { return 0; }

POWERCUT_EXPORT void pmem_flush(const void* address, size_t bytes) {
  flush("pmem_flush", POWERCUT_CALLER, address, bytes);
}
POWERCUT_EXPORT void pmem_deep_flush(const void* address, size_t bytes) {
  flush("pmem_deep_flush", POWERCUT_CALLER, address, bytes);
}
POWERCUT_EXPORT void pmem_drain() { drain("pmem_drain", POWERCUT_CALLER); }
POWERCUT_EXPORT int pmem_deep_drain(const void*, size_t) {
  drain("pmem_deep_drain", POWERCUT_CALLER);
  return 0;
}
POWERCUT_EXPORT void pmem_persist(const void* address, size_t bytes) {
  flush("pmem_persist", POWERCUT_CALLER, address, bytes);
  drain("pmem_persist", POWERCUT_CALLER);
}
POWERCUT_EXPORT int pmem_deep_persist(const void* address, size_t bytes) {
  flush("pmem_deep_persist", POWERCUT_CALLER, address, bytes);
  drain("pmem_deep_persist", POWERCUT_CALLER);
  return 0;
}
POWERCUT_EXPORT int pmem_msync(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t first = begin / powercut::kPage * powercut::kPage;
  return powercut::sync_memory("pmem_msync", POWERCUT_CALLER, reinterpret_cast<void*>(first),
                               bytes + (begin - first), MS_SYNC);
}

// name, the same function for plain memory, the type of the source or of the fill byte
#define POWERCUT_COPY(name, copy, From)                                           \
  POWERCUT_EXPORT void* name(void* to, From from, size_t bytes, unsigned flags) { \
    copy(to, from, bytes);                                                        \
    after_copy(#name, POWERCUT_CALLER, to, bytes, flags);                         \
    return to;                                                                    \
  }                                                                               \
  POWERCUT_EXPORT void* name##_persist(void* to, From from, size_t bytes) {       \
    copy(to, from, bytes);                                                        \
    after_copy(#name "_persist", POWERCUT_CALLER, to, bytes, 0);                  \
    return to;                                                                    \
  }                                                                               \
  POWERCUT_EXPORT void* name##_nodrain(void* to, From from, size_t bytes) {       \
    copy(to, from, bytes);                                                        \
    after_copy(#name "_nodrain", POWERCUT_CALLER, to, bytes, kNoDrain);           \
    return to;                                                                    \
  }
POWERCUT_COPY(pmem_memmove, memmove, const void*)
POWERCUT_COPY(pmem_memcpy, memmove, const void*)
POWERCUT_COPY(pmem_memset, memset, int)

POWERCUT_EXPORT const char* pmem_check_version(unsigned major, unsigned minor) {
  if (major == kMajor && minor <= kMinor) return nullptr;
  error_message = "libpmem " + std::to_string(major) + "." + std::to_string(minor) +
                  " is required, and this is " + std::to_string(kMajor) + "." + std::to_string(kMinor);
  return error_message.c_str();
}
POWERCUT_EXPORT const char* pmem_errormsg() { return error_message.c_str(); }
