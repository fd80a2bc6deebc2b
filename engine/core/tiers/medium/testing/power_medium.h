// Files whose medium may lose its power at any call: synced data stays; of the rest, each name, length and
// eight-byte word is there or not, at random.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "files/file_calls.h"
#include "threads/mutex.h"

namespace embstore::medium::testing {

enum class Sync {
  kNone,
  kRecords,
  kRecordsWrittenAnew,
  kDirectory,        // the one of the tier's files
  kParentDirectory,  // the parent of that directory
  kManifest,
  kManifestNamed,    // the directory of manifests, after a manifest got its name
  kManifestRemoved,  // the same, after one was removed
};

class PowerMedium final : public files::FileCalls {
 public:
  // For a table in `root` (see FileTable), whose directory of rows need not exist yet. Existing files count
  // as durable.
  PowerMedium(std::string root, uint64_t seed);
  ~PowerMedium() override;

  // Makes syncs of this kind do nothing from now on.
  void leave_out(Sync which) { left_out_ = which; }
  // Makes one sync fail, after `syncs` that don't. A file whose sync fails loses the data that should have
  // become durable, as on Linux.
  void fail_sync_after(int syncs) { syncs_until_failure_ = syncs; }
  // Sets a function that runs before every call that changes or syncs files, except calls that create them,
  // since the cache of descriptors is locked then. REQUIRES: such calls come one at a time.
  void before_each_call(std::function<void()> call) { before_call_ = std::move(call); }

  // Writes what a power cut now would leave to `to`.
  void cut(const std::string& to);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override;
  int fdatasync(int descriptor) override;
  int fsync(int descriptor) override;
  int unlink(const char* path) override;
  int rename(const char* from, const char* to) override;

 private:
  struct Node {
    int descriptor;       // our own, so that an unlinked file can be read
    std::string path;     // by which it was last opened or renamed
    std::string durable;  // its bytes on the medium
    bool forgets = false;
  };
  static constexpr ino_t kNothing = 0;

  Node& node_of(int descriptor, const std::string& path) REQUIRES(mutex_);
  std::string current(const Node& node) const REQUIRES(mutex_);
  std::string left_of(const Node& node, uint64_t percent) REQUIRES(mutex_);
  void name(const std::string& path, ino_t node) REQUIRES(mutex_);
  void settle_names(const std::string& directory) REQUIRES(mutex_);
  bool is_ours(const std::string& path) const;
  void announce();
  bool fails();  // whether the current sync fails
  uint64_t below(uint64_t end) REQUIRES(mutex_) { return random_() % end; }

  const std::string root_;
  const std::string rows_;
  const std::string manifests_;
  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::map<ino_t, Node> nodes_ GUARDED_BY(mutex_);
  // For each name, the files that it may stand for on the medium; the last is the current one.
  std::map<std::string, std::vector<ino_t>> names_ GUARDED_BY(mutex_);
  bool rows_is_durable_ GUARDED_BY(mutex_) = false;  // the name of the directory of rows
  bool manifest_was_named_ GUARDED_BY(mutex_) = false;
  Sync left_out_ = Sync::kNone;
  int syncs_until_failure_ = -1;  // below 0, none fails
  std::function<void()> before_call_;
  bool is_calling_ = false;
};

}  // namespace embstore::medium::testing
