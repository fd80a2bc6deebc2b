// Calls that bring files and names to the medium.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stand_in.h"

namespace powercut {
namespace {

enum class Synced : uint8_t { kNothing, kFile, kFolder };

Synced what_is(Computer& computer, int descriptor) {
  struct stat status{};
  if (!computer.active() || fstat(descriptor, &status) != 0) return Synced::kNothing;
  if (S_ISREG(status.st_mode)) return computer.follows(descriptor) ? Synced::kFile : Synced::kNothing;
  if (!S_ISDIR(status.st_mode)) return Synced::kNothing;
  const std::string path = path_of(descriptor);
  return computer.watch().root_of(path) ? Synced::kFolder : Synced::kNothing;
}

bool sync_known(Computer& computer, Synced what, int descriptor) {
  struct stat status{};
  fstat(descriptor, &status);
  const uint64_t id = computer.watch().identity(status);
  if (what == Synced::kFolder) return computer.names.sync_folder(id);
  bool useful = computer.find(id)->capture(computer.next_sequence());
  // POSIX doesn't promise that the file's name is durable, too; a journal written in order does.
  if (computer.names.in_order()) useful = computer.names.sync_all() || useful;
  return useful;
}

// The medium is our own memory: the file system's own sync would only take time.
template <typename Work>
int sync_one(const char* function, void* caller, int descriptor, Work work) {
  Computer& computer = Computer::get();
  computer.refuse_child(function, descriptor);
  const Synced what = what_is(computer, descriptor);
  if (what == Synced::kNothing) return work();
  Call call(computer, Kind::kSync, function, caller);
  if (call.does("sync")) call.tell_use("sync", !sync_known(computer, what, descriptor));
  return 0;
}

void sync_all(const char* function, void* caller) {
  Computer& computer = Computer::get();
  if (!computer.has_begun()) return;
  Call call(computer, Kind::kSync, function, caller);
  if (call.does("sync")) computer.sync_everything();
}

}  // namespace
}  // namespace powercut

POWERCUT_EXPORT int fsync(int descriptor) {
  POWERCUT_HIDDEN(fsync);
  return powercut::sync_one("fsync", POWERCUT_CALLER, descriptor, [&] { return hidden_call(descriptor); });
}
POWERCUT_EXPORT int fdatasync(int descriptor) {
  POWERCUT_HIDDEN(fdatasync);
  return powercut::sync_one("fdatasync", POWERCUT_CALLER, descriptor,
                            [&] { return hidden_call(descriptor); });
}
POWERCUT_EXPORT int syncfs(int descriptor) noexcept {
  POWERCUT_HIDDEN(syncfs);
  if (!powercut::Computer::get().has_begun()) return hidden_call(descriptor);
  powercut::sync_all("syncfs", POWERCUT_CALLER);
  return 0;
}
POWERCUT_EXPORT void sync() noexcept {
  POWERCUT_HIDDEN(sync);
  if (!powercut::Computer::get().has_begun()) return hidden_call();
  powercut::sync_all("sync", POWERCUT_CALLER);
}
