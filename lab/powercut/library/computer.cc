#include "computer.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "complaint.h"
#include "cut.h"
#include "stand_in.h"
#include "system_calls.h"

namespace powercut {
namespace {

constexpr size_t kFrames = 24;

// Returns a stack without symbols and folders, which differ between computers and not between calls.
std::string identity(const CallStack& stack, size_t frames) {
  std::string joined;
  for (size_t i = 0; i < stack.size() && i < frames; ++i) {
    const std::string place = stack[i].substr(0, stack[i].rfind(' '));
    if (!joined.empty()) joined += "<";
    joined += place.substr(place.rfind('/') + 1);
  }
  return joined;
}

[[noreturn]] void die() {
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

Computer*& Computer::current() {
  static Computer* computer = new Computer;
  return computer;
}

void Computer::begin() { current() = new Computer; }

Computer::Computer()
    : names(false), settings_(read_settings()), watch_(settings_.roots), active_(!settings_.roots.empty()) {
  names = Names(settings_.in_order);
  without_.insert(settings_.without.begin(), settings_.without.end());
  if (!active_) return;
  std::array<void*, 2> warm{};
  backtrace(warm.data(), 2);  // loads its library now, not inside a call
  pthread_atfork([] { get().lock().release(); },
                 [] {
                   if (!get().ends_here()) get().mutex_.unlock();
                 },
                 [] {
                   get().mutex_.unlock();
                   get().become_child();
                 });
}

// A child that uses the folders before its parent does becomes the followed process.
void Computer::become_child() {
  if (!has_begun()) return;
  is_child_ = true;
  active_ = false;
}

void Computer::refuse_child(const char* function, int descriptor) {
  if (!is_child_) return;
  const MediumFile* file = find(descriptor);
  const std::string path = path_of(descriptor);
  struct stat status{};
  const bool is_folder = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  if (file != nullptr || (is_folder && watch_.root_of(path))) refuse_child(function, path);
}

void Computer::refuse_child(const char* function, int folder, const char* path) {
  if (!is_child_) return;
  if (const auto place = watch_.find(folder, path)) refuse_child(function, place->path);
}

void Computer::refuse_child(const char* function, const void* address, size_t bytes) {
  if (!is_child_ || !mappings.may_touch(address, bytes)) return;
  const std::byte* const at = mappings.next(address);
  if (at == nullptr || at >= static_cast<const std::byte*>(address) + bytes) return;
  refuse_child(function, "mapped memory");
}

void Computer::refuse_child(const char* function, const std::string& path) {
  complain(settings_.session, std::string(function) + " of " + path +
                                  " in a forked child, which isn't followed: let the process that forked it "
                                  "do that");
}

void Computer::claim() {
  if (claimed_) return;
  if (!system_calls::write_file(settings_.session + "/owner", "", O_EXCL)) {
    complain(settings_.session,
             "a second process uses the folders of the medium, and only one can be followed; "
             "run one program (a shell should `exec` it), and prepare the medium by --prepare");
  }
  owner_ = getpid();
  claimed_ = true;
  record_.begun_us = now_us();
  start_timer();
}

void Computer::start_timer() {
  if (settings_.cut_after_us == 0) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t timer{};
  pthread_create(
      &timer, nullptr,
      [](void*) -> void* {
        const uint64_t us = get().settings_.cut_after_us;
        timespec left{static_cast<time_t>(us / 1000000), static_cast<long>(us % 1000000 * 1000)};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
        Call(get(), "moment", nullptr).cut("moment");
      },
      nullptr);
  pthread_detach(timer);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MediumFile* Computer::find(uint64_t id) {
  const auto found = files.find(id);
  return found == files.end() ? nullptr : found->second.get();
}

MediumFile* Computer::find(int descriptor) {
  struct stat status{};
  if (files.empty() || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  return find(watch_.identity(status));
}

bool Computer::follows(int descriptor) {
  if (!has_begun()) return false;
  const auto held = lock();
  return find(descriptor) != nullptr;
}

MediumFile* Computer::follow(const Place& place, bool is_new) {
  struct stat status{};
  if (stat(place.path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  if (MediumFile* known = find(watch_.identity(status))) return known;
  const uint64_t id = watch_.identity(status);
  const std::string kept = watch_.kept_path(place.root, id);
  if (!system_calls::link(place.path.c_str(), kept.c_str())) {
    complain(settings_.session, place.path + ": can't be linked to " + kept + ": " + std::strerror(errno));
  }
  auto& file = files[id] = std::make_unique<MediumFile>(files.size(), place.root, id, kept);
  if (is_new) {
    file->start_empty();
  } else {
    file->capture(sequence_);
  }
  return file.get();
}

MediumFile* Computer::follow_unnamed(size_t root, int descriptor) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  const uint64_t id = watch_.identity(status);
  const std::string kept = watch_.kept_path(root, id);
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (!system_calls::link(link.c_str(), kept.c_str())) return nullptr;  // it can never get a name
  auto& file = files[id] = std::make_unique<MediumFile>(files.size(), root, id, kept);
  file->start_empty();
  return file.get();
}

void Computer::keep_link(const Place& place, uint64_t id) {
  const std::string kept = watch_.kept_path(place.root, id);
  if (system_calls::link_itself(place.path.c_str(), kept.c_str()) || errno == EEXIST) return;
  complain(settings_.session, place.path + ": can't be linked to " + kept + ": " + std::strerror(errno));
}

void Computer::sync_everything() {
  for (auto& [id, file] : files) file->capture(next_sequence());
  names.sync_all();
}

std::unique_lock<std::mutex> Computer::lock() {
  return ends_here() ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
}

void Computer::write_record() {
  Json json;
  json.open('{');
  record_.describe(json);
  names.describe(json, std::vector<bool>(names.calls().size(), true));
  json.key("files").open('[');
  for (const auto& [id, file] : files) json.value(id);
  json.close(']').close('}');
  if (json.write(settings_.session + "/record.json")) return;
  complain(settings_.session, settings_.session + ": can't be written");
}

FlushedLines& Computer::thread() {
  thread_local FlushedLines* const own = &flushes.start_thread();
  return *own;
}

Call::Call(Computer& computer, const char* function, void* return_address)
    : computer_(computer), function_(function) {
  const Settings& settings = computer.settings_;
  const bool names_sites = settings.record || !settings.without.empty();
  if (return_address != nullptr && names_sites) {
    // Takes as many frames in a record as in a cut, which finds the sites that the record has named.
    const size_t frames = settings.record ? std::max(kFrames, settings.site_frames) : settings.site_frames;
    stack_ = call_stack(return_address, frames);
  }
  lock_ = computer.lock();
  computer.claim();
}

Call::~Call() {
  if (computer_.ends_here()) computer_.write_record();
}

Call::Call(Computer& computer, Kind kind, const char* function, void* return_address)
    : Call(computer, function, return_address) {
  const Settings& settings = computer.settings_;
  if (settings.counts(kind)) count(kind, return_address);
  // If the program ends before its moment has come, the end is the moment.
  if (kind == Kind::kExit && settings.cut_after_us != 0) cut(name_of(kind));
  if (kind == Kind::kExit && settings.record) {
    computer.ending_ = gettid();
    lock_.release();
  }
}

void Call::count(Kind kind, void* return_address) {
  Computer& computer = computer_;
  const Settings& settings = computer.settings_;
  ++computer.points_;
  if (settings.record) computer.record_.add_point(kind, function_, stack_);
  if (computer.points_ == settings.cut_at) {
    if (stack_.size() < kFrames && return_address != nullptr) {
      lock_.unlock();  // Python's lock comes before ours
      stack_ = call_stack(return_address, kFrames);
      lock_.lock();
    }
    cut(name_of(kind));
  }
}

const std::string& Call::site() {
  if (site_.empty()) site_ = identity(stack_, computer_.settings_.site_frames);
  return site_;
}

bool Call::does(const char* what) {
  if (computer_.settings_.record) computer_.record_.add_site(function_, what, site());
  return computer_.without_.empty() || !computer_.without_.contains(std::string(what) + " " + site());
}

void Call::tell_use(const char* what, bool useless, uint64_t lines, uint64_t clean) {
  if (computer_.settings_.record)
    computer_.record_.add_useful(what, function_, stack_, useless, lines, clean);
}

void Call::cut(const char* kind) {
  describe_cut(computer_, {computer_.points_, kind, function_, stack_});
  die();
}

}  // namespace powercut

POWERCUT_EXPORT void powercut_begin() { powercut::Computer::begin(); }
