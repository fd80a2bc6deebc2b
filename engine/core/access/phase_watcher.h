// The interface by which code outside of the core watches a tier's rows: pacing, recordings.
//
// A watcher is told of a phase when the phase ends. If the phase's thread has to do something for the
// watcher, such as wait, it does so at its next safe point (safe_point.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "access/access_count.h"

namespace embstore {

// The accesses of one kind and one size that a phase counted.
struct PhaseCount : AccessCount {
  uint64_t touched_lines = 0;  // the watcher is given those that it wants
};

// A line of 64 bytes that a phase touched.
struct TouchedLine {
  static constexpr uint64_t kBytes = 64;

  uint64_t line;  // address / kBytes
  Access access;
  uint8_t group;  // the index of the count that it belongs to
};

// Divides lines into classes. A sample consists of whole classes.
class LineClasses {
 public:
  static constexpr uint64_t kCount = 4096;
  static constexpr uint64_t kSampled = 64;

  // Returns the rank of the line's class; the classes of the lowest ranks are sampled. A line and the line
  // kCount after it are in one class. The factor is odd, so that lines at any regular distance are sampled at
  // the same rate.
  static uint64_t rank_of(uint64_t line) { return line * 2657 % kCount; }
  static bool is_sampled(uint64_t line) { return rank_of(line) < kSampled; }
};

// Thread-safe.
class PhaseWatcher {
 public:
  enum class Lines : uint8_t { kNone, kSampled, kAll };

  virtual ~PhaseWatcher() = default;
  // Returns which of the touched lines phase_ended() needs.
  virtual Lines wanted_lines() const = 0;
  // Called at the end of a phase with the time it began, its counts, and the touched lines in order. The
  // phase's thread calls it, and may hold locks.
  virtual void phase_ended(std::chrono::steady_clock::time_point began, std::span<const PhaseCount> counts,
                           std::span<const TouchedLine> lines) noexcept = 0;
};

}  // namespace embstore
