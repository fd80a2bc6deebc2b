// What may watch the rows of a tier from outside of the core: pacing, recordings.
//
// A watcher is told of a phase when the phase ends. What it wants the phase's thread to do, such as to wait, it leaves
// to that thread's next safe point (safe_point.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "access/access_count.h"

namespace embstore {

// What a phase counted, of one kind of access and one size.
struct PhaseCount : AccessCount {
  uint64_t touched_lines = 0;  // of which those that were wanted are told
};

// A line of 64 bytes that a phase touched.
struct TouchedLine {
  static constexpr uint64_t kBytes = 64;

  uint64_t line;  // address / kBytes
  Access access;
  uint8_t group;  // the number of the count that it belongs to
};

// Lines are in classes, of which a sample has some as a whole.
class LineClasses {
 public:
  static constexpr uint64_t kCount = 4096;
  static constexpr uint64_t kSampled = 64;

  // Classes by this order of theirs: those that are sampled come first. A line and the line kCount after it are in one
  // class. The factor is odd, so that of lines in any regular distance the same share is sampled.
  static uint64_t rank_of(uint64_t line) { return line * 2657 % kCount; }
  static bool is_sampled(uint64_t line) { return rank_of(line) < kSampled; }
};

// Safe for threads.
class PhaseWatcher {
 public:
  enum class Lines : uint8_t { kNone, kSampled, kAll };

  virtual ~PhaseWatcher() = default;
  // Which of the touched lines phase_ended() needs.
  virtual Lines wanted_lines() const = 0;
  // Tells of a phase: when it began, its counts, and the touched lines in order. The phase's thread calls it, and may
  // hold locks.
  virtual void phase_ended(std::chrono::steady_clock::time_point began, std::span<const PhaseCount> counts,
                           std::span<const TouchedLine> lines) noexcept = 0;
};

}  // namespace embstore
