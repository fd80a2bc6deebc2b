// PROGRAM                              explores some schedules, some again without each synchronisation, and
// tests the explorer PROGRAM --thorough                   the same, with more schedules for synchronisations
// that nothing needs PROGRAM --schedules COUNT [FIRST]    explores COUNT schedules PROGRAM --seed SEED
// [--print]        explores one schedule, and prints every point at which threads could be switched PROGRAM
// --left-out COUNT [NAME]      explores up to COUNT schedules without each synchronisation that has NAME in
// its name
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "testing/explorer/history.h"
#include "testing/explorer/left_out.h"
#include "testing/explorer/schedule.h"
#include "testing/explorer/scheduler.h"
#include "testing/files.h"
#include "testing/tests.h"
#include "threads/mutex.h"

namespace embstore::explorer {
namespace {

// A process creates some objects once. They are created before the first schedule that counts, so that a
// schedule depends on its seed only.
void warm_up() {
  static const bool is_warm = [] {
    uint64_t seed = ~uint64_t{31};  // with the current code this seed has checkpoints
    while (!explore(seed).has_checkpoints) --seed;
    return true;
  }();
  static_cast<void>(is_warm);
}

std::string described(uint64_t seed, const Explored& explored) {
  char text[100];
  std::snprintf(text, sizeof(text), "seed %llu: %llu points, trace %016llx\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(explored.points),
                static_cast<unsigned long long>(explored.trace));
  return text;
}

void explore_all(uint64_t first, uint64_t count) {
  warm_up();
  for (uint64_t seed = first; seed < first + count; ++seed) explore(seed);
}

// --- The schedules that several tests use

constexpr uint64_t kSchedules = kUnderSanitizer ? 200 : 400;

struct Seen {
  // Numbers of schedules that have these.
  uint64_t checkpoints_of_partitions = 0;
  uint64_t steps_of_variables = 0;
  // The engine's sites, without those of the explorer itself and of the emulated device.
  std::map<SyncSite, std::string> sites;
};

Seen explore_and_look() {
  warm_up();
  Seen seen;
  left_out().looks_for_sites = true;
  for (uint64_t seed = 0; seed < kSchedules; ++seed) {
    const Explored explored = explore(seed);
    seen.checkpoints_of_partitions += explored.has_checkpoints_of_partitions;
    seen.steps_of_variables += explored.has_steps_of_variables;
  }
  left_out().looks_for_sites = false;
  seen.sites = names_of(left_out().seen);
  std::erase_if(seen.sites, [](const auto& site) {
    constexpr std::string_view kOthers[] = {"in place ", " in main", "::explorer::", "::EmulatedDevice::"};
    return std::any_of(std::begin(kOthers), std::end(kOthers),
                       [&](std::string_view part) { return site.second.find(part) != std::string::npos; });
  });
  return seen;
}

// Explores the schedules at the first call.
const Seen& schedules() {
  static const Seen seen = explore_and_look();
  return seen;
}

// --- Leaving a synchronisation out

// The number of schedules that must not notice that an unneeded synchronisation is left out; more with
// --thorough.
uint64_t schedules_for_nothing = 60;

struct Ended {
  bool is_well;              // it ended by itself, and nothing had failed
  std::string written;       // what it wrote to stdout
  std::string error_output;  // what it wrote to stderr
};

// Runs this program again with other arguments, in a process of its own, since it may fail, crash, or not
// end.
Ended run_again(const std::vector<std::string>& arguments) {
  const TemporaryDirectory directory;
  const std::string written = directory / "stdout";
  const std::string error_output = directory / "stderr";
  std::vector<const char*> pointers = {"interleavings_test"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, written.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, error_output.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, "/proc/self/exe", &actions, nullptr, const_cast<char**>(pointers.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  check(error == 0, "no process can be started");
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) && WEXITSTATUS(status) == 0, bytes_of(written), bytes_of(error_output)};
}

// Returns the schedule that noticed that a synchronisation was left out.
std::optional<uint64_t> noticed_at(const SyncSite& site, uint64_t schedules) {
  const Ended ended = run_again({"--without", std::to_string(static_cast<int>(site.what)),
                                 std::to_string(site.place), std::to_string(schedules)});
  if (ended.is_well) return std::nullopt;
  check(ended.written.size() % sizeof(uint64_t) == 0 && !ended.written.empty(), "no schedule was begun");
  uint64_t last = 0;
  std::memcpy(&last, ended.written.data() + ended.written.size() - sizeof(last), sizeof(last));
  return last;
}

// Without a synchronisation a count may be garbage, and soon fill the computer's memory.
void limit_memory() {
  constexpr uint64_t kMaxBytesMore = uint64_t{2} << 30;  // a schedule takes megabytes
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + kMaxBytesMore;
  const rlimit limit{bytes, bytes};
  check(pages != 0 && setrlimit(RLIMIT_AS, &limit) == 0, "memory can't be limited");
}

// The work of the process that noticed_at() starts.
[[noreturn]] void explore_without(const SyncSite& site, uint64_t schedules) {
  constexpr unsigned kMaxSeconds = 20;  // a schedule takes milliseconds
  warm_up();
  limit_memory();
  left_out().site = site;
  for (uint64_t seed = 0; seed < schedules; ++seed) {
    static_cast<void>(write(STDOUT_FILENO, &seed, sizeof(seed)));
    alarm(kMaxSeconds);
    explore(seed);
  }
  _exit(0);
}

void print_what_is_noticed(uint64_t max_schedules, std::string_view part) {
  for (const auto& [site, name] : schedules().sites) {
    if (name.find(part) == std::string::npos) continue;
    const std::optional<uint64_t> seed = noticed_at(site, max_schedules);
    std::printf("%s: %s\n", name.c_str(),
                seed ? ("noticed at " + std::to_string(*seed)).c_str() : "NOT NOTICED");
    std::fflush(stdout);
  }
}

// --- Tests

TEST(every_schedule_gives_what_some_serial_order_gives) { schedules(); }

TEST(a_seed_gives_the_same_schedule_again_in_another_process_too) {
  warm_up();
  for (uint64_t seed = 0; seed < scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const std::string once = described(seed, explore(seed));
    check(described(seed, explore(seed)) == once, "another schedule");
    if (seed % 5 != 0) continue;
    const Ended ended = run_again({"--seed", std::to_string(seed)});
    check(ended.is_well && ended.written == once,
          "another schedule in another process: " + once + ended.written);
  }
  check(described(1, explore(1)) != described(1, explore(2)), "two seeds give the same schedule");
}

TEST(schedules_have_checkpoints_of_partitions_and_steps_of_several_variables) {
  const uint64_t checkpoints = schedules().checkpoints_of_partitions;
  const uint64_t steps = schedules().steps_of_variables;
  check(checkpoints > kSchedules / 100, std::to_string(checkpoints) + " have checkpoints of partitions");
  check(steps > kSchedules / 10, std::to_string(steps) + " have steps of several variables");
}

// Within this many schedules, each synchronisation that matters to the device must be noticed when left out.
constexpr uint64_t kSchedulesWithout = 4000;
// These aren't noticed in any schedule.
struct Unnoticed {
  std::string_view name;
  const char* why;
};
constexpr Unnoticed kUnnoticed[] = {
    {"a use by the host in embstore::Table::stats", "it reads no rows; counts of steps in flight come later"},
    {"a use by the host in embstore::Table::drop_persisted",
     "steps are refused while there are wanted rows to forget"},
    {"a use by the host in embstore::Table::apply_by_host",
     "the updates of all partitions say so themselves; it keeps locks in their order"},
    {"the host's wait in embstore::DeviceSteps::Turns::Turns",
     "for room in flight: whether there is some is asked again and again"},
    {"the host's wait in embstore::gpu::Mirror::Mirror", "for a tier whose making fails, as none does here"},
    {"the host's wait in embstore::gpu::SlotMarks::SlotMarks", "as above"},
};

TEST(a_synchronisation_that_is_left_out_is_noticed) {
  if (kUnderSanitizer) return;  // the sanitizer would report the race, or the use after free, that follows
  size_t left_out = 0;
  std::set<Synchronisation> kinds;
  for (const auto& [site, name] : schedules().sites) {
    kinds.insert(site.what);
    if (site.what == Synchronisation::kLock) continue;
    tested_case() = name;
    const std::string& found = name;
    const bool is_of_no_use =
        std::any_of(std::begin(kUnnoticed), std::end(kUnnoticed),
                    [&](const Unnoticed& known) { return found.starts_with(known.name); });
    const std::optional<uint64_t> seed =
        noticed_at(site, is_of_no_use ? schedules_for_nothing : kSchedulesWithout);
    check(seed.has_value() != is_of_no_use,
          is_of_no_use ? "it matters, at seed " + std::to_string(seed.value_or(0)) : "nothing noticed it");
    ++left_out;
  }
  tested_case() = "";
  check(left_out >= 20, "few synchronisations were found: " + std::to_string(left_out));
  check(kinds.size() == static_cast<size_t>(Synchronisation::kCount), "of some kinds none was found");
}

// Tests locks under which threads synchronise with others: of the locks that a function takes, at least one
// must be noticed. Work under another lock can't be interleaved here if it has no point; the thread sanitizer
// finds its races.
TEST(a_lock_of_the_tier_or_of_its_steps_that_is_left_out_is_noticed) {
  if (kUnderSanitizer) return;
  for (const char* function :
       {"embstore::HbmTier::write", "embstore::HbmTier::read_rows", "embstore::DeviceSteps::HostUse::HostUse",
        "embstore::DeviceSteps::Turns::Turns"}) {
    tested_case() = function;
    std::map<SyncSite, std::string> taken = schedules().sites;
    std::erase_if(taken, [wanted = std::string("a lock in ") + function](const auto& site) {
      return !site.second.starts_with(wanted);
    });
    check(!taken.empty(), "it takes no lock, or its calls became a part of its callers");
    // First a few schedules for each lock, since another lock of the function may be unneeded.
    const auto is_noticed_in = [&taken](uint64_t schedules) {
      return std::any_of(taken.begin(), taken.end(), [schedules](const auto& site) {
        return noticed_at(site.first, schedules).has_value();
      });
    };
    check(is_noticed_in(20) || is_noticed_in(300), "nothing noticed it");
  }
}

// --- Tests of the explorer itself

// Runs two threads that take the same two locks in different orders.
void deadlock() {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Scheduler& scheduler = Scheduler::instance();
    scheduler.fail = [](const std::string& what) { fail(what); };
    scheduler.begin(seed);
    {
      Mutex first;
      Mutex second;
      const auto take_both = [&](Mutex& one, Mutex& other) NO_THREAD_SAFETY_ANALYSIS {
        scheduler.now_at("two locks");
        one.lock();
        other.lock();
        other.unlock();
        one.unlock();
      };
      const std::jthread thread([&] { take_both(first, second); });
      take_both(second, first);
    }
    scheduler.end();
  }
}

TEST(a_deadlock_is_reported_with_what_each_thread_waits_for) {
  const Ended ended = run_again({"--deadlock"});
  check(!ended.is_well, "there was none");
  for (const char* part : {"a deadlock", "thread 0 (two locks) waits for a lock, which thread 1 has",
                           "thread 1 (two locks) waits for a lock, which thread 0 has"}) {
    check(ended.error_output.find(part) != std::string::npos,
          std::string(part) + " isn't in: " + ended.error_output);
  }
}

// Threads read a count under a lock and write it under the next: some updates are lost, always by the same
// seeds. Returns how many.
uint64_t lost_updates(uint64_t seed) {
  Scheduler& scheduler = Scheduler::instance();
  scheduler.begin(seed);
  uint64_t count = 0;
  {
    Mutex mutex;
    const auto add_one = [&] {
      mutex.lock();
      const uint64_t before = count;
      mutex.unlock();
      mutex.lock();
      count = before + 1;
      mutex.unlock();
    };
    const std::jthread one(add_one);
    const std::jthread other(add_one);
  }
  scheduler.end();
  return 2 - count;
}

TEST(threads_can_be_switched_between_two_locks) {
  uint64_t lost = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const uint64_t once = lost_updates(seed);
    check(once == lost_updates(seed), "another schedule");
    lost += once;
  }
  check(lost > 10 && lost < 90, std::to_string(lost) + " updates of 200 were lost");
}

using Kind = Operation::Kind;

// Returns whether an order explains operations that run one after the other, or, with `beside`, all at once.
bool is_explained(std::vector<Operation> operations, bool beside) {
  History history;
  std::vector<size_t> numbers;
  for (Operation& operation : operations) {
    numbers.push_back(history.begin(std::move(operation)));
    if (!beside) history.end(numbers.back());
  }
  for (const size_t number : numbers) {
    if (beside) history.end(number);
  }
  return !history.contradiction({1, 2}).has_value();
}

TEST(what_no_order_explains_is_a_contradiction) {
  const Operation apply{.rows = {{1, {1, 5}}, {2, {1, 5}}}, .kind = Kind::kApply, .name = "apply"};
  const auto read = [](int64_t count) {
    return Operation{.rows = {{1, {count}}}, .kind = Kind::kRead, .name = "read"};
  };
  check(is_explained({apply, read(1)}, /*beside=*/false), "what was trained is seen");
  check(!is_explained({apply, read(0)}, /*beside=*/false), "an old row");
  check(is_explained({apply, read(0)}, /*beside=*/true), "a row as it was when the read began");
  check(!is_explained({apply, read(2)}, /*beside=*/true), "a row that there was not");
  // Each read saw a row that existed, but the row went back.
  History history;
  const size_t under_way = history.begin(apply);
  history.end(history.begin(read(1)));
  history.end(history.begin(read(0)));
  history.end(under_way);
  check(history.contradiction({1, 2}).has_value(), "a row that went back");
  const auto moment = [](std::map<int64_t, RowState> rows) {
    return Operation{.rows = std::move(rows), .kind = Kind::kMoment, .name = "export"};
  };
  check(is_explained({apply, moment({{1, {1, 5}}, {2, {1, 5}}})}, /*beside=*/true), "a batch");
  check(is_explained({apply, moment({})}, /*beside=*/true), "no batch");
  check(!is_explained({apply, moment({{1, {1, 5}}})}, /*beside=*/true), "a part of a batch");
  check(!is_explained({apply, moment({{1, {1, 4}}, {2, {1, 4}}})}, /*beside=*/true), "another version");
  const Operation drop{.rows = {{1, {1}}}, .kind = Kind::kDrop, .name = "drop"};
  check(is_explained({apply, drop, read(0)}, /*beside=*/false), "a row that was removed");
  check(!is_explained({drop, apply, read(1)}, /*beside=*/false), "a row was removed that there was not");
  const Operation save{.rows = {{2, {1, 5}}}, .kind = Kind::kSave, .name = "save", .min_version = 5};
  check(!is_explained({apply, save}, /*beside=*/false), "a row was evicted that is young enough");
}

}  // namespace
}  // namespace embstore::explorer

int main(int argc, char** argv) {
  using namespace embstore;
  using namespace embstore::explorer;
  // Only one explored thread runs at a time, and it runs faster on the processor of the one before.
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  sched_setaffinity(0, sizeof(here), &here);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto number = [&](size_t i) { return std::strtoull(arguments.at(i).c_str(), nullptr, 10); };
  const std::string mode = arguments.empty() ? "" : arguments[0];
  if (mode == "--without") {
    explore_without({static_cast<Synchronisation>(number(1)), number(2)}, number(3));
  } else if (mode == "--deadlock") {
    deadlock();
  } else if (mode == "--schedules") {
    explore_all(arguments.size() > 2 ? number(2) : 0, number(1));
    std::printf("held: %s schedules\n", arguments[1].c_str());
  } else if (mode == "--seed") {
    warm_up();
    Scheduler::instance().prints = arguments.back() == "--print";
    std::printf("%s", described(number(1), explore(number(1))).c_str());
  } else if (mode == "--left-out") {
    print_what_is_noticed(number(1), arguments.size() > 2 ? arguments[2] : "");
  } else {
    check(mode.empty() || mode == "--thorough", "no " + mode + " is known");
    if (!mode.empty()) schedules_for_nothing = 300;
    for (const Test& test : tests()) {
      std::printf("%s\n", test.name);
      std::fflush(stdout);
      test.run();
      tested_case() = "";
    }
    std::printf("held: %zu tests\n", tests().size());
  }
  return 0;
}
