// How far the log had come, noted in a small file that is mapped and shared: a process that is killed loses
// its buffer, but not what it noted, so the next one can say how much is missing. FORMAT.md has the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "files/file.h"

namespace embstore::ssd_hash {

class SequenceNote {
 public:
  // Opens the note of `directory`, or makes one. `optimizer` says what the rows' slots are.
  // Throws Error(kStorage) where the file system can't map it, or where it's damaged, or of another
  // format, variable or optimizer.
  SequenceNote(files::FileCalls& calls, const std::string& directory, const std::string& variable_name,
               const std::string& optimizer);
  ~SequenceNote();
  SequenceNote(const SequenceNote&) = delete;
  SequenceNote& operator=(const SequenceNote&) = delete;

  static bool exists(const std::string& directory);
  static void remove(files::FileCalls& calls, const std::string& directory);

  // Whether an earlier process had made it.
  bool was_there() const { return was_there_; }

  // The greatest sequence number that was given to a record, and the greatest of which it's known that the
  // record, like all before it, was written out. Both cost a store to memory.
  uint64_t handed_out() const;
  uint64_t written_out() const;
  void hand_out(uint64_t sequence);
  void write_out(uint64_t sequence);

  // Brings it to the medium; where that fails once, a new note takes its place.
  void sync();

 private:
  struct Counters;

  static std::string path_in(const std::string& directory);
  // Under its own name only when it's whole, so that no kill leaves half a note.
  static std::unique_ptr<files::File> made(files::FileCalls& calls, const std::string& directory,
                                           const void* page);
  void map();

  files::FileCalls& calls_;
  const std::string directory_;
  const bool was_there_;
  std::unique_ptr<files::File> file_;
  void* page_ = nullptr;
  Counters* counters_ = nullptr;
};

}  // namespace embstore::ssd_hash
