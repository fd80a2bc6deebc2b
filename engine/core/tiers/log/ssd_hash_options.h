// The options of rows in files; each field's comment says its default.
#pragma once

#include <cstdint>

#include "files/file_calls.h"
#include "tiers/medium/batch_reader.h"

namespace embstore {

enum class CompactionMode {
  kWritingThread,  // the writing thread makes the room that it needs
  kOwnThread,      // a thread of the tier; writers help if it falls behind
};

struct SsdHashOptions {
  // Default: the fastest. detailed_stats() says which scheme was chosen, and why.
  medium::IoScheme io_scheme = medium::IoScheme::kAuto;

  // Default false: through the page cache. True: O_DIRECT; an error if the file system has none.
  bool direct = false;

  // Default 64 MiB: the largest file. Files are shorter while there are few rows, so that space is freed in
  // small pieces.
  uint64_t file_bytes = uint64_t{64} << 20;

  // Default 4 MiB, at least 128 KiB, and at least eight records. The files take at most twice the live
  // records plus this. Writes are gathered into an eighth of it.
  uint64_t buffer_bytes = uint64_t{4} << 20;

  // Default: the writing thread.
  CompactionMode compaction = CompactionMode::kWritingThread;

  // Default false: the files are removed when the tier is closed; those of a killed process, when the next
  // tier opens the directory. True: files that a kept checkpoint needs stay, for adopt_kept() and restore().
  bool keeps_checkpoints = false;

  // Default: the system's. Not owned.
  files::FileCalls* file_calls = &files::system_file_calls();
};

}  // namespace embstore
