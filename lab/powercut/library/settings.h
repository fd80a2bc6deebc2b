// The settings, which the parent gives in environment variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace powercut {

// The kinds of calls at which the power may go. Flushes are not among them: a flush alone may be lost.
enum class Kind : uint8_t { kDrain, kSync, kName, kWrite, kExit, kFlush };
const char* name_of(Kind kind);

struct Settings {
  std::vector<std::string> roots;  // POWERCUT_UNDER: canonical paths of folders, separated by colons
  std::string session;             // POWERCUT_SESSION: folder for output files; empty: nothing is followed
  uint64_t cut_at = 0;        // POWERCUT_AT: number of the call, from 1, at which the power goes; 0: none
  uint64_t cut_after_us = 0;  // POWERCUT_AFTER_US: time since the first use of a root; 0: never
  uint64_t seed = 0;          // POWERCUT_SEED: for the choice of what reaches the medium
  bool record = false;        // POWERCUT_RECORD=1: write a record of every call at the end
  bool in_order = false;      // POWERCUT_NAMES=ordered: names reach the medium in the order of the calls
  size_t atomic_bytes = 8;    // POWERCUT_ATOMIC: 8, or 64 for lines that are never torn
  size_t site_frames = 1;     // POWERCUT_SITE_FRAMES: return addresses that identify a call site
  std::vector<std::string>
      without;            // POWERCUT_WITHOUT: calls to take out, "WHAT SITE", separated by newlines
  uint32_t points = ~0U;  // POWERCUT_POINTS: kinds of calls that are counted, separated by commas

  bool counts(Kind kind) const { return (points >> static_cast<unsigned>(kind) & 1U) != 0; }
};

Settings read_settings();

}  // namespace powercut
