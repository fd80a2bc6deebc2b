// Calls that add, change and remove names.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "complaint.h"
#include "stand_in.h"

namespace powercut {
namespace {

struct Named {
  uint64_t id = 0;  // 0: no file has the name
  char type = 'f';
  std::string target;  // of a symbolic link
};

char type_of(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return 'f';
  if (S_ISDIR(status.st_mode)) return 'd';
  return S_ISLNK(status.st_mode) ? 'l' : 'o';
}

// Returns a symbolic link's target, read while the link exists: after the cut it may have to be made again.
std::string target_of(const Computer& computer, const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length <= 0) {
    complain(computer.settings().session,
             path + ": the symbolic link can't be read: " + std::strerror(errno));
  }
  return {target.data(), static_cast<size_t>(length)};
}

Named look_up(const Computer& computer, const Place& place) {
  struct stat status{};
  if (lstat(place.path.c_str(), &status) != 0) return {};
  const char type = type_of(status);
  return {computer.watch().identity(status), type,
          type == 'l' ? target_of(computer, place.path) : std::string()};
}

// Keeps a file that the program removes, since the medium may still have it.
void keep(Computer& computer, const Place& place, const Named& named) {
  if (named.id == 0) return;
  if (named.type == 'f') computer.follow(place, false);
  if (named.type == 'l') computer.keep_link(place, named.id);
}

// Returns a call on a name. named: the file that has the name, or had it.
NameCall call_on(NameCall::Kind kind, const char* function, const Place& place, const Named& named) {
  NameCall call;
  call.kind = kind;
  call.entry = {place.folder_id, place.name};
  call.id = named.id;
  call.type = named.type;
  call.target = named.target;
  call.told = std::string(function) + " " + place.path;
  return call;
}

// Adds a name by `work`, which may change the path, as mkstemp() does.
template <typename Work>
int add_name(const char* function, void* caller, int folder, const char* path, Work work) {
  Computer& computer = Computer::get();
  computer.refuse_child(function, folder, path);
  const auto place = computer.active() ? computer.watch().find(folder, path) : std::nullopt;
  if (!place) return work();
  const Call call(computer, Kind::kName, function, caller);
  const bool was_there = look_up(computer, *place).id != 0;
  const int result = work();
  const int reason = errno;
  const auto made_place = computer.watch().find(folder, path);
  const Named named = made_place ? look_up(computer, *made_place) : Named{};
  if (result == 0 && !was_there && named.id != 0) {
    if (named.type == 'f') computer.follow(*made_place, false);
    computer.names.add(call_on(NameCall::Kind::kAdd, function, *made_place, named));
  }
  errno = reason;
  return result;
}

template <typename Work>
int remove_by(const char* function, void* caller, int folder, const char* path, Work work) {
  Computer& computer = Computer::get();
  computer.refuse_child(function, folder, path);
  const auto place = computer.active() ? computer.watch().find(folder, path) : std::nullopt;
  if (!place) return work();
  const Call call(computer, Kind::kName, function, caller);
  const Named named = look_up(computer, *place);
  keep(computer, *place, named);
  const int result = work();
  const int reason = errno;
  if (result == 0) computer.names.add(call_on(NameCall::Kind::kRemove, function, *place, named));
  errno = reason;
  return result;
}

template <typename Work>
int rename_by(const char* function, void* caller, int from_folder, const char* from, int to_folder,
              const char* to, unsigned flags, Work work) {
  Computer& computer = Computer::get();
  computer.refuse_child(function, from_folder, from);
  computer.refuse_child(function, to_folder, to);
  if (!computer.active()) return work();
  const auto source = computer.watch().find(from_folder, from);
  const auto target = computer.watch().find(to_folder, to);
  if (!source && !target) return work();
  if (!source || !target) {
    complain(computer.settings().session, std::string(function) + " " + from + " to " + to +
                                              ": one of them isn't under the followed folders (--under)");
  }
  const Call call(computer, Kind::kName, function, caller);
  const Named moved = look_up(computer, *source);
  const Named replaced = look_up(computer, *target);
  keep(computer, *target, replaced);
  const int result = work();
  const int reason = errno;
  if (result == 0 && moved.id != replaced.id) {
    const bool exchanges = (flags & RENAME_EXCHANGE) != 0;
    NameCall renamed =
        call_on(exchanges ? NameCall::Kind::kExchange : NameCall::Kind::kRename, function, *source, moved);
    renamed.to = {target->folder_id, target->name};
    renamed.other = replaced.id;
    renamed.told += " to " + target->path;
    computer.names.add(std::move(renamed));
  }
  errno = reason;
  return result;
}

}  // namespace

int remove_name(const char* function, void* caller, int folder, const char* path, int flags) {
  POWERCUT_HIDDEN(unlinkat);
  return remove_by(function, caller, folder, path, [&] { return hidden_call(folder, path, flags); });
}

}  // namespace powercut

using powercut::add_name;
using powercut::remove_by;
using powercut::remove_name;
using powercut::rename_by;

POWERCUT_EXPORT int unlink(const char* path) noexcept {
  return remove_name("unlink", POWERCUT_CALLER, AT_FDCWD, path, 0);
}
POWERCUT_EXPORT int unlinkat(int folder, const char* path, int flags) noexcept {
  return remove_name("unlinkat", POWERCUT_CALLER, folder, path, flags);
}
POWERCUT_EXPORT int rmdir(const char* path) noexcept {
  return remove_name("rmdir", POWERCUT_CALLER, AT_FDCWD, path, AT_REMOVEDIR);
}
POWERCUT_EXPORT int remove(const char* path) noexcept {
  POWERCUT_HIDDEN(remove);
  return remove_by("remove", POWERCUT_CALLER, AT_FDCWD, path, [&] { return hidden_call(path); });
}

POWERCUT_EXPORT int rename(const char* from, const char* to) noexcept {
  POWERCUT_HIDDEN(rename);
  return rename_by("rename", POWERCUT_CALLER, AT_FDCWD, from, AT_FDCWD, to, 0,
                   [&] { return hidden_call(from, to); });
}
POWERCUT_EXPORT int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  POWERCUT_HIDDEN(renameat);
  return rename_by("renameat", POWERCUT_CALLER, from_folder, from, to_folder, to, 0,
                   [&] { return hidden_call(from_folder, from, to_folder, to); });
}
POWERCUT_EXPORT int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                              unsigned flags) noexcept {
  POWERCUT_HIDDEN(renameat2);
  return rename_by("renameat2", POWERCUT_CALLER, from_folder, from, to_folder, to, flags,
                   [&] { return hidden_call(from_folder, from, to_folder, to, flags); });
}

// name, the folder and the path of the new name, parameters, values
#define POWERCUT_ADD(name, folder, path, parameters, values)                                   \
  POWERCUT_EXPORT int name parameters noexcept {                                               \
    POWERCUT_HIDDEN(name);                                                                     \
    return add_name(#name, POWERCUT_CALLER, folder, path, [&] { return hidden_call values; }); \
  }
POWERCUT_ADD(link, AT_FDCWD, to, (const char* from, const char* to), (from, to))
POWERCUT_ADD(linkat, to_folder, to,
             (int from_folder, const char* from, int to_folder, const char* to, int flags),
             (from_folder, from, to_folder, to, flags))
POWERCUT_ADD(symlink, AT_FDCWD, path, (const char* target, const char* path), (target, path))
POWERCUT_ADD(symlinkat, folder, path, (const char* target, int folder, const char* path),
             (target, folder, path))
POWERCUT_ADD(mkdir, AT_FDCWD, path, (const char* path, mode_t mode), (path, mode))
POWERCUT_ADD(mkdirat, folder, path, (int folder, const char* path, mode_t mode), (folder, path, mode))
// result, its value if the call failed
#define POWERCUT_MAKE_NAMED(name, result, failed, parameters, values, ...) \
  POWERCUT_EXPORT result name parameters __VA_ARGS__ {                     \
    POWERCUT_HIDDEN(name);                                                 \
    result made = failed;                                                  \
    add_name(#name, POWERCUT_CALLER, AT_FDCWD, pattern, [&] {              \
      made = hidden_call values;                                           \
      return made == failed ? -1 : 0;                                      \
    });                                                                    \
    return made;                                                           \
  }
POWERCUT_MAKE_NAMED(mkdtemp, char*, nullptr, (char* pattern), (pattern), noexcept)
POWERCUT_MAKE_NAMED(mkstemp, int, -1, (char* pattern), (pattern))
POWERCUT_MAKE_NAMED(mkstemp64, int, -1, (char* pattern), (pattern))
POWERCUT_MAKE_NAMED(mkostemp, int, -1, (char* pattern, int flags), (pattern, flags))
POWERCUT_MAKE_NAMED(mkostemp64, int, -1, (char* pattern, int flags), (pattern, flags))
POWERCUT_MAKE_NAMED(mkstemps, int, -1, (char* pattern, int suffix), (pattern, suffix))
POWERCUT_MAKE_NAMED(mkostemps, int, -1, (char* pattern, int suffix, int flags), (pattern, suffix, flags))
