// Lines that threads have flushed and not yet drained.
//
// A flush sends a line as it is then, or as it is at any moment up to the drain: what is stored in between may
// go along or not. So what is certain after a drain is the line as it was at the flush, and that is what the
// medium takes. What was stored later is as any other store: by chance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "chance.h"
#include "mappings.h"

namespace powercut {

struct FlushedLine {
  MediumFile* file;
  uint64_t offset;
  uint64_t sequence;
  std::array<std::byte, kLine> bytes;
};

// Of one thread: a fence waits for the flushes of its own processor only.
struct FlushedLines {
  uint32_t thread = 0;
  std::vector<FlushedLine> lines;
};

class Flushes {
 public:
  struct Count {
    uint64_t lines = 0;
    uint64_t clean = 0;  // whose bytes the medium had, or will have at the drain of what was flushed before
  };

  FlushedLines& start_thread();
  // Of all lines of `bytes` at `address` that are mapped.
  Count flush(const Mappings& mappings, FlushedLines& thread, const void* address, size_t bytes,
              uint64_t sequence);
  // Says whether there was anything.
  static bool drain(FlushedLines& thread);
  // At a cut: each line that waits reaches the medium by chance.
  void settle(Chance& chance, double probability);

 private:
  // The thread's flush of a line that its drain will bring to the medium; null for none.
  static FlushedLine* pending(FlushedLines& thread, const MediumFile& file, uint64_t offset);

  std::list<FlushedLines> threads_;  // also those that have ended: their lines wait for ever
};

}  // namespace powercut
