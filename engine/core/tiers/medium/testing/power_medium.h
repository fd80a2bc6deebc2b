// Files whose medium may lose its power at any call: what was synced stays; of the rest, names, lengths and words of
// eight bytes, each is there or not, by chance.
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
  kDirectory,        // of the tier's files
  kParentDirectory,  // of that directory
  kManifest,
  kManifestNamed,    // the directory of manifests, when one got its name
  kManifestRemoved,  // and when one was removed
};

class PowerMedium final : public files::FileCalls {
 public:
  // Of a table in `root` (see TestTable), of which the directory of rows needn't be there yet. What is there is on the
  // medium already.
  PowerMedium(std::string root, uint64_t seed);
  ~PowerMedium() override;

  // Such syncs do nothing from now on.
  void leave_out(Sync which) { left_out_ = which; }
  // One sync fails, after so many that don't. That of a file drops what it was to bring to the medium, as Linux does it.
  void fail_sync_after(int syncs) { syncs_until_failure_ = syncs; }
  // Before everything that changes files or syncs them, but for making them, when the cache of descriptors is locked.
  // REQUIRES: such calls come one at a time.
  void before_each_call(std::function<void()> call) { before_call_ = std::move(call); }

  // Makes `to` with what a power cut now would leave.
  void cut(const std::string& to);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override;
  int fdatasync(int descriptor) override;
  int fsync(int descriptor) override;
  int unlink(const char* path) override;
  int rename(const char* from, const char* to) override;

 private:
  struct Node {
    int descriptor;       // of ours, so that what was unlinked can be read
    std::string path;     // that it was last opened by
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
  bool fails();  // a sync that is asked for now
  uint64_t below(uint64_t end) REQUIRES(mutex_) { return random_() % end; }

  const std::string root_;
  const std::string rows_;
  const std::string manifests_;
  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::map<ino_t, Node> nodes_ GUARDED_BY(mutex_);
  // What each name may stand for on the medium; the last is what it stands for.
  std::map<std::string, std::vector<ino_t>> names_ GUARDED_BY(mutex_);
  bool rows_is_durable_ GUARDED_BY(mutex_) = false;  // the directory's name
  bool manifest_was_named_ GUARDED_BY(mutex_) = false;
  Sync left_out_ = Sync::kNone;
  int syncs_until_failure_ = -1;  // none fails below 0
  std::function<void()> before_call_;
  bool is_calling_ = false;
};

}  // namespace embstore::medium::testing
