#include "testing/explorer/scheduler.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace embstore::explorer {
namespace {

constexpr const char* kNames[] = {"a lock",     "an unlock", "a shared lock",       "a condition", "a notice",
                                  "an address", "a start",   "the end of a thread", "a yield"};

// After this many points, all threads get equal turns; after twice as many, the schedule counts as endless.
constexpr uint64_t kManyPoints = 400'000;

}  // namespace

struct Scheduler::Thread {
  explicit Thread(size_t of_number) : number(of_number) { sem_init(&turn, 0, 0); }
  ~Thread() { sem_destroy(&turn); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  bool can_run() const { return !is_blocked && !has_ended; }
  void wait_for_turn() {
    while (sem_wait(&turn) != 0) {
    }
  }

  size_t number;
  std::string at;
  bool is_blocked = false;
  Point waits_at = Point::kLock;
  const void* waits_on = nullptr;
  bool has_ended = false;
  int64_t priority = 0;
  pthread_t id{};
  sem_t turn;
};

namespace {

thread_local Scheduler::Thread* this_thread = nullptr;

}  // namespace

Scheduler& Scheduler::instance() {
  static auto* const scheduler = new Scheduler;
  return *scheduler;
}

bool Scheduler::has_this_thread() { return this_thread != nullptr; }

void Scheduler::begin(uint64_t seed) {
  draws_ = gpu::emulated::Draws(seed);
  points_ = hash_ = 0;
  std::erase_if(threads_, [](const auto& thread) { return thread->has_ended; });
  next_number_ = 1;
  for (const auto& thread : threads_) thread->number = next_number_++;
  threads_.insert(threads_.begin(), std::make_unique<Thread>(0));
  this_thread = threads_.front().get();
  this_thread->id = pthread_self();
  by_priorities_ = draws_.one_in(2);
  switches_one_in_ = uint64_t{1} << (2 * draws_.below(4));
  lowest_ = 0;
  for (const auto& thread : threads_) thread->priority = 1 + static_cast<int64_t>(draws_.below(1 << 30));
  lowered_at_.clear();
  choices_ = 0;
  constexpr uint64_t kLengths[] = {50, 300, 2000};
  const uint64_t length = kLengths[draws_.below(3)];
  for (uint64_t left = draws_.below(8); left != 0; --left) lowered_at_.push_back(draws_.below(length));
}

uint64_t Scheduler::end() {
  const auto others_can_run = [this] {
    return std::any_of(threads_.begin() + 1, threads_.end(), [](const auto& t) { return t->can_run(); });
  };
  while (others_can_run()) yield();
  threads_.erase(threads_.begin());
  this_thread = nullptr;
  return hash_;
}

void Scheduler::now_at(const std::string& what) {
  if (this_thread == nullptr) return;
  this_thread->at = what;
  if (prints) std::fprintf(stderr, "%6lu thread %zu: %s\n", points_, this_thread->number, what.c_str());
}

size_t Scheduler::number_of_this_thread() const { return this_thread->number; }

void Scheduler::note(uint64_t seen) { hash_ = (hash_ ^ seen) * 0x100000001b3ULL + (hash_ >> 47); }

// --- Who runs

void Scheduler::trace(Point kind) {
  ++points_;
  note(this_thread->number << 8 | static_cast<uint64_t>(kind));
  if (prints) {
    std::fprintf(stderr, "%6lu thread %zu: %s\n", points_, this_thread->number,
                 kNames[static_cast<size_t>(kind)]);
  }
}

Scheduler::Thread& Scheduler::pick(Thread& current, bool gives_way) {
  if (points_ > 2 * kManyPoints) fail("there is no end to it: " + described());
  std::vector<Thread*> can;
  for (const auto& thread : threads_) {
    if (thread->can_run() && !(gives_way && thread.get() == &current)) can.push_back(thread.get());
  }
  if (can.empty() && current.can_run()) return current;
  if (can.empty()) fail("a deadlock: " + described());
  if (points_ > kManyPoints) return *can[draws_.below(can.size())];
  if (!by_priorities_) {
    if (current.can_run() && !gives_way && !draws_.one_in(switches_one_in_)) return current;
    return *can[draws_.below(can.size())];
  }
  return **std::max_element(can.begin(), can.end(),
                            [](const Thread* a, const Thread* b) { return a->priority < b->priority; });
}

void Scheduler::switch_to(Thread& next, Thread& current) {
  if (&next == &current) return;
  const bool comes_back = !current.has_ended;
  sem_post(&next.turn);
  // The thread that runs now forgets one that has ended.
  if (comes_back) current.wait_for_turn();
}

void Scheduler::point(Point kind) {
  trace(kind);
  Thread& current = *this_thread;
  const bool has_choice = std::any_of(threads_.begin(), threads_.end(),
                                      [&](const auto& t) { return t.get() != &current && t->can_run(); });
  if (!has_choice) return;
  ++choices_;
  if (by_priorities_ && std::find(lowered_at_.begin(), lowered_at_.end(), choices_) != lowered_at_.end())
    current.priority = --lowest_;
  switch_to(pick(current, /*gives_way=*/false), current);
}

void Scheduler::yield_to_another(Point kind) {
  trace(kind);
  Thread& current = *this_thread;
  current.priority = --lowest_;
  switch_to(pick(current, /*gives_way=*/true), current);
}

void Scheduler::yield() { yield_to_another(Point::kYield); }

void Scheduler::block(Point kind, const void* on) {
  Thread& current = *this_thread;
  current.is_blocked = true;
  current.waits_at = kind;
  current.waits_on = on;
  trace(kind);
  switch_to(pick(current, /*gives_way=*/false), current);
}

void Scheduler::wake_all(Point kind, const void* on) {
  for (const auto& thread : threads_) {
    if (thread->is_blocked && thread->waits_at == kind && thread->waits_on == on) thread->is_blocked = false;
  }
}

std::string Scheduler::described() const {
  std::string text;
  for (const auto& thread : threads_) {
    if (thread->has_ended) continue;
    text += "\n  thread " + std::to_string(thread->number) + " (" + thread->at + ") ";
    if (!thread->is_blocked) {
      text += "can run";
      continue;
    }
    text += std::string("waits for ") + kNames[static_cast<size_t>(thread->waits_at)];
    if (const auto owner = owners_.find(thread->waits_on); owner != owners_.end()) {
      text += ", which thread " + std::to_string(owner->second->number) + " has";
    }
    if (const auto lock = shared_locks_.find(thread->waits_on); lock != shared_locks_.end()) {
      if (lock->second.owner != nullptr) {
        text += ", which thread " + std::to_string(lock->second.owner->number) + " has alone";
      }
      for (const Thread* reader : lock->second.readers) {
        text += ", which thread " + std::to_string(reader->number) + " shares";
      }
    }
  }
  return text;
}

// --- Locks

void Scheduler::lock(const void* mutex) {
  point(Point::kLock);
  while (owners_.contains(mutex)) block(Point::kLock, mutex);
  owners_[mutex] = this_thread;
}

bool Scheduler::try_lock(const void* mutex) {
  point(Point::kLock);
  return owners_.emplace(mutex, this_thread).second;
}

bool Scheduler::unlock(const void* mutex) {
  const auto found = owners_.find(mutex);
  if (found == owners_.end() || found->second != this_thread) return false;
  owners_.erase(found);
  wake_all(Point::kLock, mutex);
  return true;
}

void Scheduler::lock_exclusively(const void* lock) {
  point(Point::kSharedLock);
  const auto is_free = [&] {
    const SharedLock& held = shared_locks_[lock];
    return held.owner == nullptr && held.readers.empty();
  };
  while (!is_free()) block(Point::kSharedLock, lock);
  shared_locks_[lock].owner = this_thread;
}

void Scheduler::lock_shared(const void* lock) {
  point(Point::kSharedLock);
  while (shared_locks_[lock].owner != nullptr) block(Point::kSharedLock, lock);
  shared_locks_[lock].readers.push_back(this_thread);
}

bool Scheduler::unlock_shared_or_exclusive(const void* lock) {
  const auto found = shared_locks_.find(lock);
  if (found == shared_locks_.end()) return false;
  SharedLock& held = found->second;
  const auto reader = std::find(held.readers.begin(), held.readers.end(), this_thread);
  if (held.owner == this_thread) {
    held.owner = nullptr;
  } else if (reader != held.readers.end()) {
    held.readers.erase(reader);
  } else {
    return false;
  }
  if (held.owner == nullptr && held.readers.empty()) shared_locks_.erase(found);
  wake_all(Point::kSharedLock, lock);
  return true;
}

// --- Conditions and addresses

void Scheduler::wait(const void* condition) { block(Point::kCondition, condition); }

void Scheduler::notify(const void* condition, bool all) {
  if (all) {
    wake_all(Point::kCondition, condition);
  } else {
    std::vector<Thread*> waiting;
    for (const auto& thread : threads_) {
      if (thread->is_blocked && thread->waits_at == Point::kCondition && thread->waits_on == condition)
        waiting.push_back(thread.get());
    }
    if (!waiting.empty()) waiting[draws_.below(waiting.size())]->is_blocked = false;
  }
  point(Point::kNotify);
}

void Scheduler::wait_for_address(const void* address) { block(Point::kAddress, address); }

int Scheduler::wake(const void* address, int most) {
  int woken = 0;
  for (const auto& thread : threads_) {
    if (woken == most) break;
    if (!thread->is_blocked || thread->waits_at != Point::kAddress || thread->waits_on != address) continue;
    thread->is_blocked = false;
    ++woken;
  }
  point(Point::kAddress);
  return woken;
}

// --- Threads

Scheduler::Thread* Scheduler::add() {
  threads_.push_back(std::make_unique<Thread>(next_number_++));
  threads_.back()->priority = 1 + static_cast<int64_t>(draws_.below(1 << 30));
  return threads_.back().get();
}

void Scheduler::forget(Thread* thread) {
  std::erase_if(threads_, [thread](const auto& known) { return known.get() == thread; });
}

void Scheduler::started(Thread* thread, pthread_t id) {
  // The id of a detached thread that has ended may be reused.
  for (const auto& other : threads_) {
    if (other->has_ended && pthread_equal(other->id, id) != 0) other->id = {};
  }
  thread->id = id;
  point(Point::kThread);
}

void Scheduler::run_as(Thread* thread) {
  this_thread = thread;
  thread->wait_for_turn();
}

void Scheduler::leave() {
  Thread& current = *this_thread;
  current.has_ended = true;
  wake_all(Point::kJoin, &current);
  trace(Point::kThread);
  this_thread = nullptr;
  switch_to(pick(current, /*gives_way=*/true), current);
}

void Scheduler::join(pthread_t id) {
  point(Point::kJoin);
  for (const auto& thread : threads_) {
    if (pthread_equal(thread->id, id) == 0 || thread.get() == this_thread) continue;
    Thread& joined = *thread;
    while (!joined.has_ended) block(Point::kJoin, &joined);
    joined.id = {};
    return;
  }
}

}  // namespace embstore::explorer
