// The computer whose power goes: the medium's state, pending changes, and counted calls.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "flushes.h"
#include "mappings.h"
#include "medium_file.h"
#include "names.h"
#include "record.h"
#include "settings.h"
#include "watch.h"

namespace powercut {

class Computer {
 public:
  // Made at the first call, and never destroyed, because other destructors may call it.
  static Computer& get() { return *current(); }
  // Reads the settings anew, in a child of a process that had none. REQUIRES: no other thread.
  static void begin();

  // Returns whether this process is followed. A forked child isn't: its stores count as its parent's.
  bool active() const { return active_; }
  bool is_child() const { return is_child_; }
  // Ends a forked child with an error if its call concerns a followed file: it would change the medium.
  void refuse_child(const char* function, int descriptor);
  void refuse_child(const char* function, int folder, const char* path);
  void refuse_child(const char* function, const void* address, size_t bytes);
  // Returns whether the process has used the folders yet; before that, nothing of it can be lost.
  bool has_begun() const { return active_ && claimed_; }
  // Returns false in a child that has its parent's memory (until it runs another program).
  bool is_owner() const { return getpid() == owner_; }
  // Returns whether a descriptor's file is followed.
  bool follows(int descriptor);
  const Settings& settings() const { return settings_; }
  const Watch& watch() const { return watch_; }

  // REQUIRES, for all following members: a Call holds the lock.
  MediumFile* find(uint64_t id);
  MediumFile* find(int descriptor);
  // Follows the file that `path` names, which is new, or which the medium has as it is.
  MediumFile* follow(const Place& place, bool is_new);
  MediumFile* follow_unnamed(size_t root, int descriptor);
  // Keeps a symbolic link that the program removes, so that no other file gets its inode number.
  void keep_link(const Place& place, uint64_t id);
  void sync_everything();
  FlushedLines& thread();
  uint64_t next_sequence() { return ++sequence_; }

  Mappings mappings;
  Names names;
  Flushes flushes;
  std::unordered_map<uint64_t, std::unique_ptr<MediumFile>> files;  // by Watch::identity()

 private:
  friend class Call;
  Computer();
  static Computer*& current();
  void claim();  // marks the folders as this process's
  void start_timer();
  void become_child();
  std::unique_lock<std::mutex> lock();
  // Returns whether this thread is ending a program that is being recorded.
  bool ends_here() const { return ending_ != 0 && ending_ == gettid(); }
  void write_record();
  [[noreturn]] void refuse_child(const char* function, const std::string& path);

  Settings settings_;
  Watch watch_;
  bool active_;
  bool is_child_ = false;
  std::atomic<bool> claimed_ = false;
  pid_t owner_ = 0;
  uint64_t points_ = 0;
  uint64_t sequence_ = 0;
  std::unordered_set<std::string> without_;
  std::mutex mutex_;
  std::atomic<pid_t> ending_ = 0;  // the thread, which keeps the lock: others can't add to the record
  Record record_;
};

// A call of the program on something followed. Holds the computer's lock, counts the call, and cuts the power
// if its moment has come.
class Call {
 public:
  Call(Computer& computer, Kind kind, const char* function, void* return_address);
  // For calls that are no cut points, and for a cut at a time instead of a call.
  Call(Computer& computer, const char* function, void* return_address);
  ~Call();

  // Returns whether this call must do its part `what` (flush, drain or sync), which a mutation may take out.
  bool does(const char* what);
  void tell_use(const char* what, bool useless, uint64_t lines = 0, uint64_t clean = 0);
  [[noreturn]] void cut(const char* kind);

 private:
  void count(Kind kind, void* return_address);
  const std::string& site();

  Computer& computer_;
  const char* function_;
  CallStack stack_;
  std::string site_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace powercut
