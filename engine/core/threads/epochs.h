// Epoch-based reclamation: memory that readers may still be looking at is freed only after every
// operation that was under way when it was retired has ended.
//
// An operation (a whole batch, not a row) holds a Guard. Entering costs one compare-and-swap.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace embstore {

class Epochs {
 private:
  static constexpr uint64_t kIdle = 0;
  struct alignas(64) Participant {
    std::atomic<uint64_t> epoch{kIdle};
  };

 public:
  class Guard {
   public:
    explicit Guard(Participant& participant) : participant_(participant) {}
    ~Guard() { participant_.epoch.store(kIdle, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Participant& participant_;
  };

  [[nodiscard]] Guard enter();

  // Keeps `object` until no operation that began before this call is under way.
  // REQUIRES: operations that begin from now on can't reach it.
  void retire(std::shared_ptr<void> object);

  // Waits until no operation is under way. REQUIRES: new ones are turned away, or the wait may not end.
  void wait_until_idle() const;

 private:
  struct Retired {
    uint64_t epoch;
    std::shared_ptr<void> object;
  };

  static constexpr size_t kMaxOperations = 128;  // at a time; further ones wait

  std::array<Participant, kMaxOperations> participants_;
  std::atomic<uint64_t> epoch_{1};
  std::mutex mutex_;
  std::vector<Retired> retired_;  // guarded by mutex_
};

}  // namespace embstore
