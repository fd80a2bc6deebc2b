// The tier's part of each checkpoint of the durable pool above, pending or kept: see checkpoint_follower.h.
// engine/FORMAT.md, section SSDHASH, has the bytes, the order of writes, and why this survives a power cut.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "threads/mutex.h"
#include "tiers/checkpoint_follower.h"
#include "tiers/ssd_hash/log.h"
#include "tiers/ssd_hash/log_shape.h"
#include "tiers/ssd_hash/snapshot.h"
#include "tiers/ssd_hash/tier_directory.h"

namespace embstore::ssd_hash {

class Checkpoints {
 public:
  // Both outlive it.
  Checkpoints(Log& log, const LogShape& shape, std::string optimizer);

  // As CheckpointFollower's methods of these names. `found` is what `directory` holds.
  void take_up(std::span<const CheckpointName> kept, TierDirectory& directory,
               const TierDirectory::OfCheckpoints& found);
  void begin(uint64_t number);
  void commit(const CheckpointName& checkpoint);
  void drop(uint64_t number) noexcept;
  uint64_t rows(uint64_t number) const;
  void restore(const CheckpointName& checkpoint, int threads, const CheckpointFollower::Restored& visit);

  bool any_kept() const;
  void drop_pending() noexcept;

 private:
  struct Checkpoint {
    std::shared_ptr<const Snapshot> snapshot;
    std::optional<CheckpointId> id;  // none of one that is pending
  };
  using ByNumber = std::map<uint64_t, Checkpoint>;
  // Returns the one after it.
  ByNumber::iterator drop(ByNumber::iterator checkpoint) noexcept REQUIRES(mutex_);

  const LogShape& shape_;
  Log& log_;
  const std::string optimizer_;

  mutable Mutex
      mutex_;  // the log's is taken under it, never the other way round; not held while the medium is waited for
  ByNumber checkpoints_ GUARDED_BY(mutex_);
  bool directory_is_on_medium_ GUARDED_BY(mutex_) = false;  // its own name
};

}  // namespace embstore::ssd_hash
