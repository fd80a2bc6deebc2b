// Lines that threads have flushed and not yet drained.
//
// A flush sends a line with its content at the flush, or at any moment up to the drain: later stores may go
// along or not. So the only certain content after a drain is that of the flush, and the medium takes it.
// Later stores reach the medium by chance, as all others.
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

// The flushed lines of one thread: a fence waits only for the flushes of its own processor.
struct FlushedLines {
  uint32_t thread = 0;
  std::vector<FlushedLine> lines;
};

class Flushes {
 public:
  struct Count {
    uint64_t lines = 0;
    uint64_t clean = 0;  // bytes that the medium had, or will have after the drain of earlier flushes
  };

  FlushedLines& start_thread();
  // Flushes all mapped lines of the `bytes` at `address`.
  Count flush(const Mappings& mappings, FlushedLines& thread, const void* address, size_t bytes,
              uint64_t sequence);
  // Returns whether there were lines to drain.
  static bool drain(FlushedLines& thread);
  // At a cut: lets each pending line reach the medium by chance.
  void settle(Chance& chance, double probability);

 private:
  // Returns the thread's pending flush of a line, or null.
  static FlushedLine* pending(FlushedLines& thread, const MediumFile& file, uint64_t offset);

  std::list<FlushedLines> threads_;  // ended threads too: their lines stay pending for ever
};

}  // namespace powercut
