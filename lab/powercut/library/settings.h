// What the program that runs this one asks for, in environment variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace powercut {

// The kinds of calls at which the power may go. Flushes are none: what a flush alone has done may be lost.
enum class Kind : uint8_t { kDrain, kSync, kName, kWrite, kExit, kFlush };
const char* name_of(Kind kind);

struct Settings {
  std::vector<std::string> roots;  // POWERCUT_UNDER: canonical paths of folders, a colon between them
  std::string session;             // POWERCUT_SESSION: folder for what is told; empty: nothing is followed
  uint64_t cut_at = 0;             // POWERCUT_AT: the call, from 1, at which the power goes; 0: at none
  uint64_t cut_after_us = 0;       // POWERCUT_AFTER_US: since the first use of a root; 0: never
  uint64_t seed = 0;               // POWERCUT_SEED: of what reaches the medium
  bool record = false;             // POWERCUT_RECORD=1: tell of every call at the end
  bool in_order = false;           // POWERCUT_NAMES=ordered: names reach the medium in the calls' order
  size_t atomic_bytes = 8;         // POWERCUT_ATOMIC: 8, or 64 for lines that are never torn
  size_t site_frames = 1;          // POWERCUT_SITE_FRAMES: return addresses that tell call sites apart
  std::vector<std::string>
      without;            // POWERCUT_WITHOUT: calls that do nothing, "WHAT SITE", a newline between
  uint32_t points = ~0U;  // POWERCUT_POINTS: kinds that are counted, a comma between them

  bool counts(Kind kind) const { return (points >> static_cast<unsigned>(kind) & 1U) != 0; }
};

Settings read_settings();

}  // namespace powercut
