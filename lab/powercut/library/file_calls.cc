// Calls that make files, or change their bytes and sizes. Their effects are found by comparing the file with
// the medium's version, so writes by other means (stdio, io_uring, sendfile) are seen too. But only these
// calls are cut points.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stand_in.h"

namespace powercut {
namespace {

// Runs `work` as a call that changes a file's size, or its blocks on the medium; without a call if the file
// isn't followed.
template <typename Work>
auto change_file(const char* function, void* caller, int descriptor, Work work) {
  Computer& computer = Computer::get();
  if (!computer.follows(descriptor)) return work();
  const Call call(computer, Kind::kWrite, function, caller);
  const auto result = work();
  const int reason = errno;
  if (MediumFile* file = computer.find(descriptor)) file->note_size();
  errno = reason;
  return result;
}

// The offset that a call writes at, and its flags of pwritev2.
struct Target {
  off_t offset = -1;  // the descriptor's position
  int flags = 0;
};

// The bytes of a followed file that a call writes.
class WrittenRange {
 public:
  WrittenRange(int descriptor, Target target) : descriptor_(descriptor), target_(target) {
    const int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0) return;
    syncs_ = (flags & O_DSYNC) != 0 || (target.flags & (RWF_DSYNC | RWF_SYNC)) != 0;
    if (!syncs_) return;  // the offset isn't needed
    appends_ = (flags & O_APPEND) != 0 || (target.flags & RWF_APPEND) != 0;
    begin_ = appends_ ? size() : target.offset >= 0 ? target.offset : lseek(descriptor, 0, SEEK_CUR);
  }

  // Returns whether written bytes are durable when the call returns.
  bool syncs() const { return syncs_; }

  // Call after a write that returned `written`: makes these bytes durable, and no others, if its flags say
  // so.
  void sync(MediumFile& file, ssize_t written, uint64_t sequence) const {
    if (!syncs_ || written < 0) return;
    const bool is_known = target_.offset >= 0 && !appends_;
    const off_t end = is_known ? begin_ + written : appends_ ? size() : lseek(descriptor_, 0, SEEK_CUR);
    if (end <= begin_) return;
    file.reach_size(static_cast<uint64_t>(end));
    file.capture_part(static_cast<uint64_t>(begin_), static_cast<uint64_t>(end - begin_), sequence);
  }

 private:
  off_t size() const {
    struct stat status{};
    return fstat(descriptor_, &status) == 0 ? status.st_size : 0;
  }

  int descriptor_;
  Target target_;
  off_t begin_ = 0;
  bool syncs_ = false;
  bool appends_ = false;
};

// Runs `work` as a call that writes to a file; without a call if the file isn't followed.
template <typename Work>
auto write_file(const char* function, void* caller, int descriptor, Target target, Work work) {
  Computer& computer = Computer::get();
  if (computer.is_child() && WrittenRange(descriptor, target).syncs()) {
    computer.refuse_child(function, descriptor);
  }
  if (!computer.follows(descriptor)) return work();
  const Call call(computer, Kind::kWrite, function, caller);
  const WrittenRange range(descriptor, target);
  const auto result = work();
  const int reason = errno;
  if (MediumFile* file = computer.find(descriptor)) {
    file->note_size();
    range.sync(*file, result, computer.next_sequence());
  }
  errno = reason;
  return result;
}

bool may_write(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0; }

// Opens with `work`, which must do what the flags say.
template <typename Work>
auto open_by(const char* function, void* caller, int folder, const char* path, int flags, Work work) {
  Computer& computer = Computer::get();
  if (!computer.active() && !computer.is_child()) return work();
  if (!may_write(flags) && (flags & O_CREAT) == 0) return work();
  const auto place = computer.watch().find(folder, path);
  if (!place && (flags & O_TMPFILE) != O_TMPFILE) return work();
  struct stat status{};
  const bool exists = place && stat(place->path.c_str(), &status) == 0;
  const bool changes = exists ? (flags & O_TRUNC) != 0 : (flags & O_CREAT) != 0;
  if (changes) computer.refuse_child(function, folder, path);
  if (computer.is_child() || (!exists && !changes)) return work();
  const Call call = changes ? Call(computer, exists ? Kind::kWrite : Kind::kName, function, caller)
                            : Call(computer, function, nullptr);
  MediumFile* file = exists && may_write(flags) ? computer.follow(*place, false) : nullptr;
  auto result = work();
  const int reason = errno;
  if (file != nullptr) {
    file->note_size();
  } else if (!exists && lstat(place->path.c_str(), &status) == 0) {
    computer.follow(*place, true);
    NameCall made;
    made.entry = {place->folder_id, place->name};
    made.id = computer.watch().identity(status);
    made.told = "create " + place->path;
    computer.names.add(std::move(made));
  }
  errno = reason;
  return result;
}

int flags_of(const char* mode) {
  const bool both = std::strchr(mode, '+') != nullptr;
  if (*mode == 'r') return both ? O_RDWR : O_RDONLY;
  return (both ? O_RDWR : O_WRONLY) | O_CREAT | (*mode == 'w' ? O_TRUNC : O_APPEND);
}

}  // namespace

int open_file(const char* function, void* caller, int folder, const char* path, int flags, mode_t mode) {
  POWERCUT_HIDDEN(openat);
  Computer& computer = Computer::get();
  if ((flags & O_TMPFILE) == O_TMPFILE && computer.active()) {
    const int descriptor = hidden_call(folder, path, flags, mode);
    if (descriptor < 0) return descriptor;
    if (const auto root = computer.watch().root_of(path_of(descriptor))) {
      const Call call(computer, function, nullptr);
      computer.follow_unnamed(*root, descriptor);
    }
    return descriptor;
  }
  return open_by(function, caller, folder, path, flags,
                 [&] { return hidden_call(folder, path, flags, mode); });
}

int resize_file(const char* function, void* caller, int descriptor, off_t bytes) {
  POWERCUT_HIDDEN(ftruncate);
  return change_file(function, caller, descriptor, [&] { return hidden_call(descriptor, bytes); });
}

int allocate_file(const char* function, void* caller, int descriptor, off_t offset, off_t bytes) {
  POWERCUT_HIDDEN(posix_fallocate);
  return change_file(function, caller, descriptor, [&] { return hidden_call(descriptor, offset, bytes); });
}

}  // namespace powercut

using powercut::change_file;
using powercut::open_by;
using powercut::open_file;
using powercut::write_file;

namespace {

mode_t mode_argument(int flags, va_list arguments) {
  const bool has_one = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_one ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define POWERCUT_OPEN(name)                                                \
  POWERCUT_EXPORT int name(const char* path, int flags, ...) {             \
    va_list arguments;                                                     \
    va_start(arguments, flags);                                            \
    const mode_t mode = mode_argument(flags, arguments);                   \
    va_end(arguments);                                                     \
    return open_file(#name, POWERCUT_CALLER, AT_FDCWD, path, flags, mode); \
  }
#define POWERCUT_OPENAT(name)                                              \
  POWERCUT_EXPORT int name(int folder, const char* path, int flags, ...) { \
    va_list arguments;                                                     \
    va_start(arguments, flags);                                            \
    const mode_t mode = mode_argument(flags, arguments);                   \
    va_end(arguments);                                                     \
    return open_file(#name, POWERCUT_CALLER, folder, path, flags, mode);   \
  }
POWERCUT_OPEN(open)
POWERCUT_OPEN(open64)
POWERCUT_OPENAT(openat)
POWERCUT_OPENAT(openat64)

// Called by programs that were compiled with _FORTIFY_SOURCE.
POWERCUT_EXPORT int __open_2(const char* path, int flags) {
  return open_file("open", POWERCUT_CALLER, AT_FDCWD, path, flags, 0);
}
POWERCUT_EXPORT int __open64_2(const char* path, int flags) {
  return open_file("open", POWERCUT_CALLER, AT_FDCWD, path, flags, 0);
}
POWERCUT_EXPORT int __openat_2(int folder, const char* path, int flags) {
  return open_file("openat", POWERCUT_CALLER, folder, path, flags, 0);
}
POWERCUT_EXPORT int __openat64_2(int folder, const char* path, int flags) {
  return open_file("openat", POWERCUT_CALLER, folder, path, flags, 0);
}
POWERCUT_EXPORT int creat(const char* path, mode_t mode) {
  return open_file("creat", POWERCUT_CALLER, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
POWERCUT_EXPORT int creat64(const char* path, mode_t mode) {
  return open_file("creat", POWERCUT_CALLER, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

#define POWERCUT_FOPEN(name)                                                         \
  POWERCUT_EXPORT FILE* name(const char* path, const char* mode) {                   \
    POWERCUT_HIDDEN(name);                                                           \
    return open_by(#name, POWERCUT_CALLER, AT_FDCWD, path, powercut::flags_of(mode), \
                   [&] { return hidden_call(path, mode); });                         \
  }
POWERCUT_FOPEN(fopen)
POWERCUT_FOPEN(fopen64)

POWERCUT_EXPORT FILE* freopen(const char* path, const char* mode, FILE* file) {
  POWERCUT_HIDDEN(freopen);
  if (path == nullptr) return hidden_call(path, mode, file);
  return open_by("freopen", POWERCUT_CALLER, AT_FDCWD, path, powercut::flags_of(mode),
                 [&] { return hidden_call(path, mode, file); });
}

// name, result, parameters (the first is the descriptor), values
#define POWERCUT_CHANGE(name, result, parameters, values, ...)                                  \
  POWERCUT_EXPORT result name parameters __VA_ARGS__ {                                          \
    POWERCUT_HIDDEN(name);                                                                      \
    return change_file(#name, POWERCUT_CALLER, descriptor, [&] { return hidden_call values; }); \
  }
// and the initializers of Target
#define POWERCUT_WRITE(name, parameters, values, ...)                                    \
  POWERCUT_EXPORT ssize_t name parameters {                                              \
    POWERCUT_HIDDEN(name);                                                               \
    return write_file(#name, POWERCUT_CALLER, descriptor, powercut::Target{__VA_ARGS__}, \
                      [&] { return hidden_call values; });                               \
  }
POWERCUT_WRITE(write, (int descriptor, const void* data, size_t bytes), (descriptor, data, bytes))
POWERCUT_WRITE(pwrite, (int descriptor, const void* data, size_t bytes, off_t offset),
               (descriptor, data, bytes, offset), offset)
POWERCUT_WRITE(pwrite64, (int descriptor, const void* data, size_t bytes, off64_t offset),
               (descriptor, data, bytes, offset), offset)
POWERCUT_WRITE(writev, (int descriptor, const iovec* data, int count), (descriptor, data, count))
POWERCUT_WRITE(pwritev, (int descriptor, const iovec* data, int count, off_t offset),
               (descriptor, data, count, offset), offset)
POWERCUT_WRITE(pwritev64, (int descriptor, const iovec* data, int count, off64_t offset),
               (descriptor, data, count, offset), offset)
POWERCUT_WRITE(pwritev2, (int descriptor, const iovec* data, int count, off_t offset, int flags),
               (descriptor, data, count, offset, flags), offset, flags)
POWERCUT_WRITE(pwritev64v2, (int descriptor, const iovec* data, int count, off64_t offset, int flags),
               (descriptor, data, count, offset, flags), offset, flags)
POWERCUT_CHANGE(ftruncate, int, (int descriptor, off_t bytes), (descriptor, bytes), noexcept)
POWERCUT_CHANGE(ftruncate64, int, (int descriptor, off64_t bytes), (descriptor, bytes), noexcept)
POWERCUT_CHANGE(fallocate, int, (int descriptor, int mode, off_t offset, off_t bytes),
                (descriptor, mode, offset, bytes))
POWERCUT_CHANGE(fallocate64, int, (int descriptor, int mode, off64_t offset, off64_t bytes),
                (descriptor, mode, offset, bytes))
POWERCUT_CHANGE(posix_fallocate, int, (int descriptor, off_t offset, off_t bytes),
                (descriptor, offset, bytes))
POWERCUT_CHANGE(posix_fallocate64, int, (int descriptor, off64_t offset, off64_t bytes),
                (descriptor, offset, bytes))

// Data buffered by stdio reaches the file through calls inside libc.
POWERCUT_EXPORT int fflush(FILE* file) {
  POWERCUT_HIDDEN(fflush);
  if (file == nullptr) return hidden_call(file);
  return write_file("fflush", POWERCUT_CALLER, fileno(file), {}, [&] { return hidden_call(file); });
}
POWERCUT_EXPORT int fclose(FILE* file) {
  POWERCUT_HIDDEN(fclose);
  static auto* const flush = powercut::hidden<int(FILE*)>("fflush");
  // Flushes here, where the descriptor still exists, so that the write is seen. fclose() reports a failure.
  write_file("fclose", POWERCUT_CALLER, fileno(file), {}, [&] { return flush(file); });
  return hidden_call(file);
}

#define POWERCUT_TRUNCATE(name, offset_type)                                   \
  POWERCUT_EXPORT int name(const char* path, offset_type bytes) noexcept {     \
    POWERCUT_HIDDEN(name);                                                     \
    return open_by(#name, POWERCUT_CALLER, AT_FDCWD, path, O_WRONLY | O_TRUNC, \
                   [&] { return hidden_call(path, bytes); });                  \
  }
POWERCUT_TRUNCATE(truncate, off_t)
POWERCUT_TRUNCATE(truncate64, off64_t)
