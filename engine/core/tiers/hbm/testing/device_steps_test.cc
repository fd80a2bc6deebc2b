// Tests look-ups and updates on the emulated device, between and beside all operations of the host on a
// table: rows are those of a table without a GPU, bit for bit, and lie in the same levels, and the host waits
// for nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <semaphore>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/emulated/emulated_device.h"
#include "keep/checkpoint/writer.h"
#include "movement/eviction_pool.h"
#include "row/key_partition.h"
#include "table.h"
#include "testing/files.h"
#include "testing/tests.h"
#include "testing/variable.h"
#include "tiers/hbm/testing/step_scene.h"

namespace embstore {
namespace {

using gpu::EmulatedDevice;

constexpr int kDim = 5;  // rows fill no whole vector, and are padded in the tier
constexpr size_t kBlockBytes = 8 * sizeof(float);
constexpr uint64_t kHbmRows = 40;
constexpr int64_t kKeys = 150;

// The call that a table forgets to make, if any.
enum class Forgets { kNothing, kToWaitForMoves, kToWaitForSteps, kToOrderSteps, kToEraseFromTheMirror };

// A device on which some calls do nothing, as if they hadn't been made.
class ForgetfulDevice final : public EmulatedDevice {
 public:
  ForgetfulDevice(uint64_t seed, Forgets forgets)
      : EmulatedDevice({.memory_bytes = 8 << 20, .seed = seed}), seed_(seed), forgets_(forgets) {}

  void wait(gpu::Stream stream, gpu::Event event) override {
    const Forgets what =
        ends_of_steps_.contains(event.handle) ? Forgets::kToOrderSteps : Forgets::kToWaitForMoves;
    if (forgets_ != what || within_steps_.contains(event.handle)) EmulatedDevice::wait(stream, event);
  }
  // While a step is put on a stream, the two events that are made after a stream of the step are used within
  // it. Other events are the ends of steps.
  gpu::Event make_event() override {
    const gpu::Event event = EmulatedDevice::make_event();
    if (!puts_a_step_) return event;
    const bool is_within = within_left_ != 0;
    if (is_within) --within_left_;
    (is_within ? within_steps_ : ends_of_steps_).insert(event.handle);
    return event;
  }
  gpu::Stream make_stream() override {
    within_left_ = puts_a_step_ ? 2 : 0;
    return EmulatedDevice::make_stream();
  }
  void puts_a_step(bool puts) { puts_a_step_ = puts; }
  uint64_t launches() const { return launches_; }

  gpu::DeviceAddress allocate(size_t bytes) override {
    allocated_bytes_ += bytes;
    return EmulatedDevice::allocate(bytes);
  }
  // With one seed in four the system refuses to pin memory that isn't the device's own; its rows are copied
  // then.
  gpu::DeviceAddress try_pin(std::span<std::byte> memory) override {
    return seed_ % 4 == 3 ? gpu::DeviceAddress{} : EmulatedDevice::try_pin(memory);
  }
  void* allocate_pinned(size_t bytes) override {
    allocated_bytes_ += bytes;
    return EmulatedDevice::allocate_pinned(bytes);
  }
  // Returns the number of bytes that were allocated so far, on the device and on the host.
  uint64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  void wait_for(gpu::Event event) override {
    if (forgets_ == Forgets::kToWaitForSteps && ends_of_steps_.contains(event.handle)) return;
    EmulatedDevice::wait_for(event);
  }
  void launch_kernel(const AnyKernel& kernel, gpu::Grid grid, const void* arguments,
                     gpu::Stream stream) override {
    ++launches_;
    if (forgets_ == Forgets::kToEraseFromTheMirror && kernel.name == std::string_view("embstore_erase"))
      return;
    EmulatedDevice::launch_kernel(kernel, grid, arguments, stream);
  }

  const uint64_t seed_;
  const Forgets forgets_;
  std::atomic<bool> puts_a_step_{false};
  std::atomic<int> within_left_{0};
  std::atomic<uint64_t> launches_{0};
  std::atomic<uint64_t> allocated_bytes_{0};
  std::set<uintptr_t> ends_of_steps_;
  std::set<uintptr_t> within_steps_;
};

struct Rule {
  std::string name;
  OptimizerParams params;
  uint64_t blocks;  // blocks of a row: its weights, and the rule's slots
};
const Rule& rule_of(uint64_t seed) {
  static const std::vector<Rule> rules = {
      {"Adagrad", {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}}, 2},
      {"Adam", {{"learning_rate", 0.1}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}}, 3},
      {"SGD", {{"learning_rate", 0.1}}, 1},
  };
  return rules[seed % rules.size()];
}

TableSpec spec_of(std::vector<TierSpec> tiers, const Rule& rule) {
  std::vector<float> defaults(4 * kDim);
  std::iota(defaults.begin(), defaults.end(), 0.25f);
  return {.name = "stepped",
          .dim = kDim,
          .default_values = std::move(defaults),
          .optimizer = rule.name,
          .optimizer_params = rule.params,
          .tiers = std::move(tiers)};
}

TierSpec hbm(const Rule& rule, uint64_t rows = kHbmRows) {
  TierSpec tier{"HBM", std::nullopt, rows * rule.blocks * kBlockBytes};
  tier.gpu.name = "emulated";
  return tier;
}

enum class Below { kDram, kSsd };

// A variable with HBM, and one with DRAM in its place, which has the expected rows.
struct Scene : StepScene<ForgetfulDevice> {
  explicit Scene(uint64_t seed, Forgets forgets = Forgets::kNothing, Below first_below = Below::kDram,
                 size_t partitions = 1)
      : StepScene(seed, std::make_shared<ForgetfulDevice>(seed, forgets), kKeys, kDim), rule(rule_of(seed)) {
    const uint64_t hbm_rows = kHbmRows / partitions;
    const auto made = [&](TierSpec first, const std::string& name) {
      return std::make_unique<Variable>(partitions, [&](size_t number) {
        TierSpec lower{"DRAM", std::nullopt, 1 << 20};
        // Two tiers can't both be DRAM.
        if (first_below == Below::kSsd || first.kind == "DRAM")
          lower = {"SSDHASH", directory / (name + std::to_string(number)), std::nullopt};
        lower.ssd_hash.file_bytes = 32 << 10;
        lower.ssd_hash.buffer_bytes = 128 << 10;
        TableSpec spec = spec_of({first, lower}, rule);
        spec.name += std::to_string(number);
        spec.partition_count = partitions;
        spec.cache_strategy = seed % 2 == 0 ? CacheStrategy::kLfu : CacheStrategy::kLru;
        if (seed % 11 == 10) spec.filter = CounterFilterSpec{3};
        return std::make_unique<Table>(spec);
      });
    };
    table = made(hbm(rule, hbm_rows), "rows");
    plain = made({"DRAM", std::nullopt, hbm_rows * rule.blocks * kBlockBytes}, "plain");
  }

  void train(const std::vector<int64_t>& ids) {
    const std::vector<float> gradients = some_gradients(ids.size());
    table->apply_gradients(ids, gradients.data(), std::nullopt);
    plain->apply_gradients(ids, gradients.data(), std::nullopt);
  }
  // Gives the keys from 0 on rows, and waits until these lie where they rank.
  std::vector<int64_t> train_first(size_t count) {
    std::vector<int64_t> keys = keys_from(0, count);
    train(keys);
    table->drain();
    return keys;
  }
  std::vector<float> expected(const std::vector<int64_t>& ids) const {
    std::vector<float> rows(ids.size() * kDim);
    plain->lookup(ids, rows.data(), LookUpPurpose::kTraining);
    return rows;
  }

  // A look-up on a stream, with its expected result.
  struct LookUp : BatchOnDevice {
    LookUp(gpu::Device& on, const std::vector<int64_t>& of, gpu::Stream put_on, std::vector<float> gives)
        : BatchOnDevice(on, of, kDim, put_on), expected(std::move(gives)) {}

    std::vector<float> expected;
  };
  std::unique_ptr<LookUp> made(const std::vector<int64_t>& ids, size_t stream = 0) {
    return std::make_unique<LookUp>(*device, ids, *streams[stream], expected(ids));
  }
  void put(const LookUp& look_up, LookUpPurpose purpose = LookUpPurpose::kTraining) {
    device->puts_a_step(true);
    table->lookup_on_device(look_up.on_device(), look_up.rows.address(), purpose);
    device->puts_a_step(false);
  }
  void serve(const std::vector<int64_t>& ids) const {
    std::vector<float> rows(ids.size() * kDim);
    plain->lookup(ids, rows.data(), LookUpPurpose::kServing);
  }

  // An update on a stream, and on the plain table.
  using Apply = BatchOnDevice;
  std::unique_ptr<Apply> train_on_device(const std::vector<int64_t>& ids, size_t stream = 0) {
    const std::vector<float> gradients = some_gradients(ids.size());
    auto apply = std::make_unique<Apply>(*device, ids, gradients, *streams[stream]);
    put(*apply);
    plain->apply_gradients(ids, gradients.data(), std::nullopt);
    return apply;
  }
  void put(const Apply& apply, const BatchConditions& conditions = {}) {
    device->puts_a_step(true);
    table->apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt, conditions);
    device->puts_a_step(false);
  }

  // Says in which respect the rows differ from those of the plain table; empty if they are the same.
  std::string difference_of_rows() const {
    for (Variable* const of : {table.get(), plain.get()}) of->drain();
    const ExportedRows mine = table->export_rows();
    const ExportedRows other = plain->export_rows();
    if (mine.keys != other.keys) return "the keys that have rows";
    if (mine.frequencies != other.frequencies) return "how often keys were trained";
    if (mine.versions != other.versions) return "the versions of rows";
    return mine.values != other.values || mine.slots != other.slots ? "the rows" : "";
  }
  // As difference_of_rows(), and also compares where rows lie.
  std::string difference() const {
    std::string of_rows = difference_of_rows();
    if (!of_rows.empty()) return of_rows;
    const std::vector<int64_t> keys = keys_from(0, kKeys + 1);
    return table->tiers_of(keys) == plain->tiers_of(keys) ? "" : "where rows lie";
  }
  // Returns those of the keys whose rows are in the tier.
  std::vector<int64_t> keys_in(int32_t tier, const std::vector<int64_t>& keys) const {
    const std::vector<int32_t> tiers = table->tiers_of(keys);
    std::vector<int64_t> found;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (tiers[i] == tier) found.push_back(keys[i]);
    }
    return found;
  }
  // The look-up's result, once the stream has finished it.
  static std::vector<float> rows_of(const LookUp& look_up) {
    std::vector<float> rows(look_up.expected.size());
    look_up.rows.copy_to(rows.data(), rows.size(), look_up.stream);
    return rows;
  }
  static bool is_right(const LookUp& look_up) {
    const std::vector<float> rows = rows_of(look_up);
    return std::memcmp(rows.data(), look_up.expected.data(), rows.size() * sizeof(float)) == 0;
  }

  const Rule& rule;
  std::unique_ptr<Variable> table;
  std::unique_ptr<Variable> plain;
};

// Says if some batches are prefetched, no matter how they are trained in the end.
enum class Ahead { kNothing, kBatches };

void ask_ahead(Scene& scene, std::deque<std::unique_ptr<Scene::LookUp>>& asked) {
  const std::vector<int64_t> ids = scene.some_ids(60);
  const Variable::Turns turn = scene.table->next_turn();
  if (scene.below(2) == 0) return scene.table->prefetch(ids, turn);
  asked.push_back(scene.made(ids, scene.below(2)));
  scene.table->prefetch_on_device(asked.back()->on_device(), turn);
  if (scene.below(8) == 0) scene.table->forget_prefetched();
}

// Puts steps on two streams between random operations of the host. Says what differs from the plain table;
// empty if nothing does.
std::string difference_after_steps(Scene& scene, Ahead ahead = Ahead::kNothing) {
  std::deque<std::unique_ptr<Scene::LookUp>> asked;
  std::deque<std::unique_ptr<Scene::LookUp>> look_ups;
  std::deque<std::unique_ptr<Scene::Apply>> applies;
  std::string wrong;
  const auto end_one = [&] {
    if (!Scene::is_right(*look_ups.front())) wrong = "what a look-up read";
    look_ups.pop_front();
  };
  for (int i = 0; i < 40; ++i) {
    if (ahead == Ahead::kBatches && scene.below(2) == 0) ask_ahead(scene, asked);
    switch (scene.below(12)) {
      case 0:
      case 1: scene.train(scene.some_ids(60)); break;
      case 2: scene.table->drain(); break;
      case 3: {
        const std::vector<int64_t> keys = {scene.some_ids(1)[0], kKeys};
        if (scene.table->drop(keys) != scene.plain->drop(keys)) wrong = "which keys had rows";
        break;
      }
      case 4: {  // brings rows up
        std::vector<float> rows(30 * kDim);
        const std::vector<int64_t> ids = scene.some_ids(30);
        scene.table->lookup(ids, rows.data(), LookUpPurpose::kServing);
        scene.serve(ids);
        break;
      }
      case 5: {  // the rows that were read are kept for an update
        std::vector<float> rows(30 * kDim);
        scene.table->lookup(scene.some_ids(30), rows.data(), LookUpPurpose::kTraining);
        break;
      }
      case 6:  // the moves may still be on the tier's stream
        scene.train(scene.some_ids(60));
        scene.table->drain();
        [[fallthrough]];
      case 7:
      case 8: applies.push_back(scene.train_on_device(scene.some_ids(60), scene.below(2))); break;
      default: {
        const LookUpPurpose purpose =
            scene.below(3) != 0 ? LookUpPurpose::kTraining : LookUpPurpose::kServing;
        const std::vector<int64_t> ids = scene.some_ids(100);
        look_ups.push_back(scene.made(ids, scene.below(2)));
        scene.put(*look_ups.back(), purpose);
        if (purpose == LookUpPurpose::kServing) scene.serve(ids);
      }
    }
    while (!look_ups.empty() && (look_ups.size() > 4 || scene.below(4) == 0)) end_one();
  }
  while (!look_ups.empty()) end_one();
  for (const auto& one : asked) scene.device->synchronise(one->stream);
  if (!wrong.empty()) return wrong;
  return ahead == Ahead::kBatches ? scene.difference_of_rows() : scene.difference();
}

void check_steps(Scene& scene, Ahead ahead) {
  const std::string difference = difference_after_steps(scene, ahead);
  check(difference.empty(), difference + "; " + scene.device->last_schedule());
  for (Table* table : scene.table->all()) {
    const gpu::Global<const uint32_t> refused = table->parts().store->tiers().hbm()->mirror().refused();
    uint32_t keys = 1;
    scene.device->copy_to_host(&keys, refused.address, sizeof(keys), *scene.streams[0]);
    check(keys == 0, "the mirror was told of keys that it had, or of too many");
  }
}

// Half of the scenes have variables with several partitions.
size_t some_partitions(uint64_t seed) { return seed / 3 % 2 == 0 ? 1 : 2 + seed % 2; }

// In at least a fifth of the scenes, a step that forgets something is noticed. Under the sanitizers, one
// scene has a filter.
constexpr uint64_t kScenes = kUnderSanitizer ? scaled_count(90) : 48;

void check_scenes(Ahead ahead) {
  for (uint64_t seed = 0; seed < kScenes; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed, Forgets::kNothing, seed % 3 == 0 ? Below::kSsd : Below::kDram, some_partitions(seed));
    check_steps(scene, ahead);
    const TableStats stats = scene.table->stats();
    check(stats.background_error.empty(), "a move failed: " + stats.background_error);
    for (const TableStats::Level& level : stats.tiers)
      check(level.rows <= level.capacity_rows, "a tier has more rows than its capacity");
  }
}
TEST(steps_between_operations_of_the_host_give_a_plain_tables_rows) { check_scenes(Ahead::kNothing); }
TEST(prefetched_steps_give_a_plain_tables_rows) { check_scenes(Ahead::kBatches); }

TEST(a_step_that_forgets_something_is_noticed) {
  if (kUnderSanitizer) return;  // some mistakes are races
  constexpr uint64_t kSchedules = 48;
  for (const auto& [forgets, name] : {std::pair{Forgets::kToWaitForMoves, "to wait for moves"},
                                      {Forgets::kToWaitForSteps, "to wait for steps"},
                                      {Forgets::kToOrderSteps, "to put steps in order"},
                                      {Forgets::kToEraseFromTheMirror, "to erase keys from the mirror"}}) {
    tested_case() = name;
    uint64_t noticed = 0;
    for (uint64_t seed = 0; seed < kSchedules; ++seed) {
      Scene scene(seed, forgets, Below::kDram, some_partitions(seed));
      try {
        noticed += !difference_after_steps(scene).empty();
      } catch (const Error&) {
        ++noticed;  // a kernel was out of bounds
      } catch (const std::logic_error&) {
        ++noticed;  // a step ran in the middle of a use
      }
    }
    check(noticed >= kSchedules / 16, "in " + std::to_string(noticed) + " schedules alone");
  }
}

TEST(rows_below_are_read_in_place_if_their_memory_is_pinned) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    const std::vector<int64_t> keys = scene.train_first(kKeys);
    const TableStats::Level below = scene.table->stats().tiers[1];
    check(below.tier.is_pinned == (seed % 4 != 3), "what is said of it");
    const auto look_up = scene.made(keys);
    scene.put(*look_up);
    check(Scene::is_right(*look_up), "what was read");
    // A row that changes right after the step is read as it was.
    const auto before = scene.made(keys);
    scene.put(*before);
    scene.train(keys);
    check(Scene::is_right(*before), "what was read before a change");
    if (!*below.tier.is_pinned) continue;
    scene.table->drain();
    // A kernel that reads the rows in place can't do so if they are no longer pinned.
    const Memory& memory = scene.table->all()[0]->parts().store->tiers().memory(2)->rows().memory();
    scene.device->unpin({memory.data(), memory.size_bytes()});
    const auto late = scene.made(keys);
    check_throws(ErrorKind::kDeviceLost, "nor pinned", [&] {
      scene.put(*late);
      Scene::rows_of(*late);
    });
  }
}

// Look-ups for training and for serving, and updates, of rows that are all in HBM.
TEST(steps_without_misses_wait_for_nothing_and_take_no_memory) {
  for (uint64_t seed = 0; seed < scaled_count(15); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const size_t partitions = 1 + seed % 3;
    Scene scene(seed / 11 * 11 + seed % 10, Forgets::kNothing, Below::kDram, partitions);  // without a filter
    const std::vector<int64_t> keys = scene.train_first(partitions == 1 ? kHbmRows : kHbmRows / 2);
    check(scene.table->tiers_of(keys) == std::vector<int32_t>(keys.size(), 0), "a row is below");
    const auto before = scene.table->stats();
    std::vector<std::unique_ptr<Scene::LookUp>> look_ups;
    std::vector<std::unique_ptr<Scene::Apply>> applies;
    for (int i = 0; i < 12; ++i) look_ups.push_back(scene.made(keys, scene.below(2)));
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> gradients = scene.some_gradients(keys.size());
      applies.push_back(
          std::make_unique<Scene::Apply>(*scene.device, keys, gradients, *scene.streams[scene.below(2)]));
    }
    gpu::DeviceArray<int64_t> left_out(*scene.device, applies.size());
    const std::vector<int64_t> is_left_out = {0, 1, 0, 1};
    left_out.copy_from(is_left_out.data(), is_left_out.size(), *scene.streams[0]);
    scene.device->synchronise(*scene.streams[0]);
    // The first steps allocate memory, for as many steps as may be in flight at once.
    gpu::OwnedEvent ends[] = {gpu::OwnedEvent(*scene.device), gpu::OwnedEvent(*scene.device)};
    const auto let_all_end = [&] {
      for (size_t s = 0; s < 2; ++s) scene.device->record(ends[s], *scene.streams[s]);
      while (!scene.device->query(ends[0]) || !scene.device->query(ends[1])) {
      }
    };
    const auto put_all = [&] {
      size_t in_flight = 0;
      const auto make_room = [&] {
        if (in_flight == DeviceSteps::kMaxInFlight) {
          let_all_end();
          in_flight = 0;
        }
        ++in_flight;
      };
      for (size_t i = 0; i < look_ups.size(); ++i) {
        make_room();
        scene.put(*look_ups[i], i % 2 == 0 ? LookUpPurpose::kTraining : LookUpPurpose::kServing);
        if (i % 3 != 0) continue;
        BatchConditions conditions;
        conditions.left_out = left_out.address() + i / 3 * sizeof(int64_t);
        make_room();
        scene.put(*applies[i / 3], conditions);
      }
      let_all_end();
    };
    constexpr uint64_t kRounds = 8;  // the first takes memory
    uint64_t waited = 0;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t free_bytes = scene.device->memory().free_bytes;
      const uint64_t waits = scene.device->host_waits();
      put_all();
      const bool has_waited = scene.device->host_waits() != waits;
      check(has_waited || scene.device->memory().free_bytes == free_bytes, "memory was taken");
      waited += has_waited;
    }
    check(waited <= kRounds / 2, "the host waited in " + std::to_string(waited) + " rounds");
    const TableStats stats = scene.table->stats();
    check(
        stats.hits - before.hits == kRounds * look_ups.size() * keys.size() && stats.misses == before.misses,
        "hits are counted otherwise");
    check(stats.promotions == before.promotions && stats.demotions == before.demotions, "rows have moved");
    for (const int64_t frequency : scene.table->frequencies(keys))
      check(frequency == 1 + static_cast<int64_t>(kRounds * 2), "updates are counted otherwise");
  }
}

// Returns when the eviction thread has finished its current work.
void wait_for_the_eviction_thread() {
  struct Last final : EvictionPool::Job {
    bool run() noexcept override {
      is_done.release();
      return false;
    }
    std::binary_semaphore is_done{0};
  } last;
  EvictionPool::instance().schedule(last);
  last.is_done.acquire();
  EvictionPool::instance().cancel(last);
}

// A batch is prefetched while its rows are below, and again when they are up; then it is looked up and
// trained.
TEST(a_prefetched_step_waits_for_nothing) {
  constexpr uint64_t kRows = 10;
  for (uint64_t seed = 0; seed < scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed / 11 * 11 + seed % 10);  // without a filter
    const std::vector<int64_t> all = scene.train_first(kKeys);
    gpu::OwnedEvent ends[] = {gpu::OwnedEvent(*scene.device), gpu::OwnedEvent(*scene.device)};
    std::vector<std::unique_ptr<Scene::LookUp>> look_ups;
    std::vector<std::unique_ptr<Scene::Apply>> applies;
    for (int round = 0; round < 8; ++round) {
      std::vector<int64_t> below = scene.keys_in(1, all);
      check(below.size() > kRows, "all rows are up");
      below.resize(kRows);
      const std::vector<float> gradients = scene.some_gradients(kRows);
      look_ups.push_back(scene.made(below, scene.below(2)));
      applies.push_back(std::make_unique<Scene::Apply>(*scene.device, below, gradients, *scene.streams[0]));
      const Variable::Turns turn = scene.table->next_turn();
      scene.table->prefetch_on_device(look_ups.back()->on_device(), turn);
      scene.table->drain();
      wait_for_the_eviction_thread();
      check(scene.keys_in(0, below) == below, "a row hasn't come up");
      const TableStats before = scene.table->stats();
      const uint64_t waits = scene.device->host_waits();
      scene.table->prefetch_on_device(look_ups.back()->on_device(), turn);
      scene.put(*look_ups.back());
      scene.put(*applies.back());
      scene.plain->apply_gradients(below, gradients.data(), std::nullopt);
      for (size_t s = 0; s < 2; ++s) scene.device->record(ends[s], *scene.streams[s]);
      while (!scene.device->query(ends[0]) || !scene.device->query(ends[1])) {
      }
      // The first ones allocate memory.
      check(round == 0 || scene.device->host_waits() == waits, "the host waited");
      const TableStats after = scene.table->stats();
      check(after.hits - before.hits == kRows && after.misses == before.misses, "a row was missed");
    }
    for (const auto& look_up : look_ups) check(Scene::is_right(*look_up), "a row is another");
    const std::string difference = scene.difference_of_rows();
    check(difference.empty(), difference);
  }
}

TEST(prefetched_rows_keep_their_ranks) {
  Scene scene(2);
  std::vector<int64_t> keys = keys_from(0, kKeys);
  scene.train(keys);
  scene.table->lookup(keys, scene.some_gradients(keys.size()).data(), LookUpPurpose::kServing);
  const auto rows_now = [&] {
    scene.table->drain();
    wait_for_the_eviction_thread();
    RowBatch rows(scene.table->parts().layout);
    scene.table->parts().store->read_settled(keys, rows);
    std::vector<std::array<uint64_t, 4>> counts;
    for (size_t i = 0; i < keys.size(); ++i) {
      const RowHeader& header = rows.header(i);
      counts.push_back(
          {header.frequency, static_cast<uint64_t>(header.version), header.served, header.stamp});
    }
    return counts;
  };
  const auto before = rows_now();
  const uint64_t promoted = scene.table->stats().promotions;
  for (size_t first = 0; first < keys.size(); first += kHbmRows / 2) {
    const size_t count = std::min<size_t>(kHbmRows / 2, keys.size() - first);
    scene.table->prefetch({keys.data() + first, count}, scene.table->next_turn());
    check(rows_now() == before, "a row was counted, or isn't what it was");
    scene.table->forget_prefetched();
  }
  check(scene.table->stats().promotions >= promoted + kKeys - kHbmRows, "rows haven't come up");
}

TEST(overlapping_batches_may_be_prefetched_on_two_streams) {
  for (uint64_t seed = 0; seed < scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed / 11 * 11 + seed % 10);  // without a filter
    const std::vector<int64_t> all = scene.train_first(kKeys);
    const auto some = [&all](size_t first, size_t end) {
      return std::vector<int64_t>(all.begin() + static_cast<ptrdiff_t>(first),
                                  all.begin() + static_cast<ptrdiff_t>(end));
    };
    const std::vector<int64_t> whole = some(0, 40);
    const auto one = scene.made(some(0, 25), 0);
    const auto other = scene.made(some(15, 40), 1);
    for (const auto* asked : {&one, &other})
      scene.table->prefetch_on_device((*asked)->on_device(), scene.table->next_turn());
    scene.table->drain();
    check(scene.keys_in(0, whole) == whole, "rows stay below");
    const TableStats before = scene.table->stats();
    for (const auto* asked : {&one, &other}) {
      scene.put(**asked);
      check(Scene::is_right(**asked), "a row is another");
    }
    check(scene.table->stats().misses == before.misses, "a row was missed");
    const std::string difference = scene.difference_of_rows();
    check(difference.empty(), difference);
  }
}

TEST(a_batch_may_be_empty_and_larger_than_the_tier) {
  Scene scene(1);
  std::vector<int64_t> keys(1000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * 7 % 333);
  scene.train(keys);
  for (const bool drained : {false, true}) {
    if (drained) scene.table->drain();
    const auto all = scene.made(keys);
    scene.put(*all);
    check(Scene::is_right(*all), "a row is another");
    scene.table->lookup_on_device({gpu::DeviceAddress{}, 0, *scene.streams[0]}, {}, LookUpPurpose::kTraining);
    const auto unknown = scene.made(std::vector<int64_t>(300, int64_t{-5}));
    scene.put(*unknown);
    check(Scene::is_right(*unknown), "a key without a row reads another value");
  }
  const TableStats stats = scene.table->stats();
  check(stats.hits + stats.misses == 2600, "ids aren't counted");
  check(stats.without_row == 600, "ids without a row are counted otherwise");
}

TEST(batches_that_miss_many_rows_are_read_and_updated_by_several_threads) {
  constexpr size_t kMany = 6000;  // enough for each of two threads
  Scene scene(1);
  const auto batch = [&](int64_t first) {
    std::vector<int64_t> ids(kMany);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<int64_t>(i * 7 % (kMany - 500));
    return ids;
  };
  std::vector<std::unique_ptr<Scene::Apply>> applies;
  for (int64_t step = 0; step < 4; ++step) {
    applies.push_back(scene.train_on_device(batch(300 * step), static_cast<size_t>(step) % 2));
    const auto all = scene.made(batch(200 * step));
    scene.put(*all, step % 2 == 0 ? LookUpPurpose::kTraining : LookUpPurpose::kEvaluation);
    check(Scene::is_right(*all), "a row is another");
    if (step == 2) scene.table->drain();
  }
  const std::string difference = scene.difference_of_rows();
  check(difference.empty(), difference);
}

TEST(a_serving_look_up_on_the_device_counts_and_brings_rows_up) {
  Scene scene(2);
  const std::vector<int64_t> keys = scene.train_first(100);
  const int64_t lower = scene.keys_in(1, keys).front();
  const auto look_up = scene.made(std::vector<int64_t>(5, lower));
  scene.put(*look_up, LookUpPurpose::kServing);
  check(Scene::is_right(*look_up), "a row is another");
  scene.table->drain();
  check(scene.table->tiers_of({&lower, 1})[0] == 0, "a row that was asked for five times stays below");
}

TEST(accesses_to_rows_that_stay_below_are_counted_beside_steps) {
  Scene scene(2);
  const std::vector<int64_t> keys = scene.train_first(kKeys);
  const std::vector<int64_t> upper = scene.keys_in(0, keys);
  const std::vector<int64_t> lower = scene.keys_in(1, keys);
  std::vector<float> rows(upper.size() * kDim);
  constexpr uint64_t kServed = 3;  // for the lower rows; the upper rows are served more often
  for (uint64_t i = 0; i < 2 * kServed; ++i) scene.table->lookup(upper, rows.data(), LookUpPurpose::kServing);
  scene.table->drain();
  const uint64_t promoted = scene.table->stats().promotions;

  const auto look_up = scene.made(lower);
  gpu::OwnedEvent end(*scene.device);
  uint64_t waits = 0;
  for (uint64_t i = 0; i < kServed; ++i) {
    scene.put(*look_up, LookUpPurpose::kServing);
    scene.device->record(end, *scene.streams[0]);
    while (!scene.device->query(end)) {
    }
    wait_for_the_eviction_thread();
    if (i == 0) waits = scene.device->host_waits();  // the first one takes memory
  }
  check(scene.device->host_waits() == waits, "the host waited");
  RowBatch read(scene.table->parts().layout);
  scene.table->parts().store->read_settled(lower, read);
  for (size_t i = 0; i < lower.size(); ++i) {
    check(read.header(i).served == kServed, "an access isn't counted");
  }
  check(Scene::is_right(*look_up), "a row is another");
  scene.table->drain();
  check(scene.table->stats().promotions == promoted, "a row came up that ranks lower");
}

TEST(the_host_does_the_work_of_steps_during_a_save) {
  Scene scene(3);
  scene.train(scene.some_ids(100));
  scene.table->drain();
  const auto before = scene.made(scene.some_ids(100));
  scene.put(*before);
  checkpoint::Writer file(scene.directory / "save", scene.table->parts().layout, {});
  const auto save = scene.table->partition(0).prepare_save(file, {});
  save->begin(/*waiting_keys=*/false);
  const auto during = scene.made(scene.some_ids(100));
  scene.put(*during);
  scene.train(scene.some_ids(100));
  const auto apply = scene.train_on_device(scene.some_ids(100));
  const auto later = scene.made(scene.some_ids(100));
  scene.put(*later);
  check(save->write(OnDamage::kRaise).skipped.empty(), "rows weren't saved");
  for (const auto* look_up : {&before, &during, &later})
    check(Scene::is_right(**look_up), "a row is another");
}

TEST(a_thread_with_a_prepared_apply_may_look_rows_up) {
  Scene scene(4);
  const std::vector<int64_t> ids = scene.some_ids(100);
  scene.train(ids);
  const std::vector<float> gradients(ids.size() * kDim, 1.0f);
  const auto prepared = scene.table->prepare_apply(ids, gradients.data());
  const auto look_up = scene.made(ids);
  scene.put(*look_up);
  check(Scene::is_right(*look_up), "a row is another");
}

TEST(a_look_up_on_a_lost_device_says_that_it_is_lost) {
  Scene scene(6);
  const auto look_up = scene.made(scene.some_ids(50));
  scene.put(*look_up);
  scene.device->lose("somebody pulled it out");
  check_throws(ErrorKind::kDeviceLost, "somebody pulled it out", [&] { scene.put(*look_up); });
  scene.table->synchronise();
  std::vector<float> row(kDim);
  const int64_t key = kKeys;
  scene.table->lookup({&key, 1}, row.data(), LookUpPurpose::kTraining);
}

TEST(a_table_may_close_while_steps_are_in_flight) {
  for (uint64_t seed = 0; seed < scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    scene.train(scene.some_ids(100));
    const auto look_up = scene.made(scene.some_ids(100));
    scene.put(*look_up);
    scene.table->close();
    check(Scene::is_right(*look_up), "a row is another");
    check_throws(ErrorKind::kClosed, "is closed", [&] { scene.put(*look_up); });
  }
}

TEST(a_table_without_hbm_takes_no_ids_on_a_device) {
  const Scene scene(7);
  check_throws(ErrorKind::kInvalidArgument, "has no tier in a GPU's memory",
               [&] { scene.plain->lookup_on_device({}, {}, LookUpPurpose::kTraining); });
}

TEST(an_apply_without_room_changes_nothing_and_the_next_call_throws) {
  Scene scene(9);
  const TableSpec spec =
      spec_of({hbm(scene.rule), {"DRAM", std::nullopt, 60 * scene.rule.blocks * kBlockBytes}}, scene.rule);
  Table table(spec);
  std::vector<int64_t> keys = keys_from(0, 101);
  const std::vector<float> gradients = scene.some_gradients(keys.size());
  const std::span<const int64_t> all(keys);
  const auto apply = [&](std::span<const int64_t> ids) {
    const Scene::Apply on_device(*scene.device, {ids.begin(), ids.end()}, gradients, *scene.streams[0]);
    table.apply_on_device(on_device.on_device(), on_device.rows.address(), std::nullopt);
    scene.device->synchronise(*scene.streams[0]);
  };
  apply(all.first(99));
  table.drain();
  apply(all);
  check_throws(ErrorKind::kStoreFull, "brings 2 new rows, but its tiers have room for 1 more of their 100",
               [&] { table.drain(); });
  std::vector<int64_t> frequencies(keys.size());
  table.frequencies(keys, frequencies.data());
  check(std::accumulate(frequencies.begin(), frequencies.end(), int64_t{0}) == 99, "some rows were updated");
  apply(all.first(100));
  table.drain();
  table.frequencies(keys, frequencies.data());
  check(std::accumulate(frequencies.begin(), frequencies.end(), int64_t{0}) == 199, "the last place is lost");
}

// Changes of rows before such a batch are visible to the step after it.
TEST(a_batch_that_does_not_fit_on_the_device_changes_nothing) {
  for (uint64_t seed = 1; seed <= scaled_count(60); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    const std::vector<int64_t> many(200'000, kKeys);
    const BatchOnDevice too_large(*scene.device, many, kDim, *scene.streams[0]);
    for (int round = 0; round < 3; ++round) {
      const auto change_rows = [&] {
        scene.train(scene.some_ids(60));
        const std::vector<int64_t> keys = scene.some_ids(3);
        check(scene.table->drop(keys) == scene.plain->drop(keys), "other keys had rows");
        scene.table->drain();
      };
      change_rows();
      check_throws(ErrorKind::kStoreFull, "a batch of 200000 ids doesn't fit", [&] {
        scene.table->lookup_on_device(too_large.on_device(), too_large.rows.address(),
                                      LookUpPurpose::kTraining);
      });
      change_rows();
      const auto look_up = scene.made(scene.some_ids(100));
      scene.put(*look_up);
      check(Scene::is_right(*look_up), "a row is another");
      const auto apply = scene.train_on_device(scene.some_ids(60));
      scene.device->synchronise(apply->stream);
    }
    check(scene.difference_of_rows().empty(), scene.difference_of_rows() + " differ");
  }
}

// The table is as if it had never got them, both on the stream and, while a save is under way, on the host. A
// batch is refused by a number, or for a gradient that isn't finite, unless that id or the whole batch is
// left out; then the next call says why.
TEST(left_out_ids_and_refused_batches_are_not_trained) {
  using Limits = std::numeric_limits<float>;
  for (uint64_t seed = 1; seed <= scaled_count(24); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const size_t partitions = 1 + (seed - 1) % 3;
    Scene scene(seed / 11 * 11 + seed % 10, Forgets::kNothing, Below::kDram, partitions);  // without a filter
    std::mt19937_64 random(seed);
    for (int step = 0; step < 12; ++step) {
      std::vector<int64_t> ids(1 + random() % 60);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % 50);
      std::vector<float> gradients = scene.some_gradients(ids.size());
      std::vector<int64_t> kept(ids.size());
      std::vector<int64_t> left;
      std::vector<float> left_gradients;
      for (size_t i = 0; i < ids.size(); ++i) {
        kept[i] = static_cast<int64_t>(random() % 3);
        if (kept[i] == 0) continue;
        left.push_back(ids[i]);
        left_gradients.insert(left_gradients.end(), gradients.begin() + static_cast<ptrdiff_t>(i * kDim),
                              gradients.begin() + static_cast<ptrdiff_t>((i + 1) * kDim));
      }
      const auto number_refused = static_cast<int64_t>(random() % 6 == 0 ? 1 + random() % 2 : 0);
      const size_t spoilt = random() % ids.size();
      const bool is_spoilt = random() % 4 == 0;
      if (is_spoilt) {
        gradients[spoilt * kDim + random() % kDim] =
            std::array{Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}[random() % 3];
      }
      const Scene::Apply apply(*scene.device, ids, gradients, *scene.streams[0]);
      gpu::DeviceArray<int64_t> of_each(*scene.device, kept.size());
      of_each.copy_from(kept.data(), kept.size(), apply.stream);
      gpu::DeviceArray<int64_t> refused(*scene.device, 1);
      refused.copy_from(&number_refused, 1, apply.stream);
      const auto is_left_out = static_cast<int64_t>(random() % 4 == 0);
      gpu::DeviceArray<int64_t> left_out(*scene.device, 1);
      left_out.copy_from(&is_left_out, 1, apply.stream);
      const BatchConditions conditions{
          of_each.address(), refused.address(), {"the first", "the second"}, left_out.address()};
      std::string reason;
      if (is_spoilt && kept[spoilt] != 0 && is_left_out == 0) {
        reason = "finite, since a row never recovers: those of ids[" + std::to_string(spoilt) + "] aren't";
      }
      if (number_refused != 0) reason = number_refused == 1 ? "the first" : "the second";
      std::string message;
      try {
        std::optional<DeviceSteps::HostUse> save;
        Table& saved = scene.table->partition(random() % partitions);
        if (step % 4 == 3) save.emplace(saved.parts().steps.get(), DeviceSteps::Length::kLong);
        scene.table->apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt, conditions);
        scene.device->synchronise(apply.stream);  // the arrays are freed
        save.reset();
        random() % 2 == 0 ? scene.table->synchronise() : scene.table->drain();
      } catch (const Error& error) {
        check(error.kind() == ErrorKind::kInvalidArgument, error.what());
        message = error.what();
        scene.device->synchronise(apply.stream);  // the arrays are freed
      }
      check(message.empty() == reason.empty() && message.find(reason) != std::string::npos,
            "\"" + reason + "\" isn't told, but: " + message);
      if (is_left_out != 0 || !reason.empty()) {
        scene.plain->leave_out_apply();
      } else {
        scene.plain->apply_gradients(left, left_gradients.data(), std::nullopt);
      }
    }
    check(scene.difference_of_rows().empty(), scene.difference_of_rows() + " differ");
  }
}

// Overwrites the contents of all files with noise.
void spoil(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    overwrite(entry.path().string(), 4096, std::string(entry.file_size() - 4096, '\x5a'));
  }
}

// A variable with one partition or three. `lost` are the keys of one partition whose rows lie below HBM, in
// files that were damaged; `left` are all other keys.
struct DamagedScene : Scene {
  DamagedScene(size_t partitions, size_t number)
      : Scene(5, Forgets::kNothing, Below::kSsd, partitions),
        keys(train_first(6000)) {  // more than stay in memory until they are written
    const std::vector<int32_t> tiers = table->tiers_of(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool is_lost = tiers[i] == 1 && partition_of(keys[i], partitions) == number;
      (is_lost ? lost : left).push_back(keys[i]);
    }
    spoil(directory / ("rows" + std::to_string(number)));
  }
  void check_told_once() const {
    check_throws(ErrorKind::kDamagedRows, "key", [&] { table->synchronise(); });
    table->synchronise();
  }
  std::vector<int64_t> keys;
  std::vector<int64_t> lost;
  std::vector<int64_t> left;
};
template <class Test>
void for_each_damaged_partition(const Test& test) {
  for (const auto& [partitions, number] : {std::pair<size_t, size_t>{1, 0}, {3, 0}, {3, 1}, {3, 2}}) {
    tested_case() = "partition " + std::to_string(number) + " of " + std::to_string(partitions);
    DamagedScene scene(partitions, number);
    test(scene);
  }
}

TEST(damaged_rows_read_nan_and_the_next_call_says_why) {
  for_each_damaged_partition([](DamagedScene& scene) {
    const auto look_up = scene.made(scene.keys);
    scene.put(*look_up);
    const std::vector<float> rows = Scene::rows_of(*look_up);
    const std::set<int64_t> lost(scene.lost.begin(), scene.lost.end());
    size_t lost_floats = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool is_lost = std::isnan(rows[i]);
      lost_floats += is_lost;
      check(is_lost || rows[i] == look_up->expected[i], "a row is another");
      check(!is_lost || lost.contains(scene.keys[i / kDim]), "a row is lost that lies elsewhere");
    }
    check(lost_floats != 0 && lost_floats % kDim == 0, "no row was lost");
    scene.check_told_once();
  });
}

// Any partition may fail: those before it were prepared, and those after it weren't asked.
TEST(a_failed_apply_changes_no_row_and_the_next_call_says_why) {
  for_each_damaged_partition([](DamagedScene& scene) {
    const std::vector<float> before = scene.expected(scene.left);
    const Scene::Apply all(*scene.device, scene.keys, scene.some_gradients(scene.keys.size()),
                           *scene.streams[0]);
    scene.put(all);
    const Scene::LookUp after(*scene.device, scene.left, *scene.streams[1], before);
    scene.check_told_once();
    scene.put(after);
    check(Scene::is_right(after), "a row of a batch that failed was updated");
    check(scene.table->frequencies(scene.left) == std::vector<int64_t>(scene.left.size(), 1),
          "a batch that failed was counted");
    for (Table* partition : scene.table->all())
      check(partition->apply_count() == 2, "an apply is counted when it is put");
  });
}

TEST(a_partition_without_room_leaves_all_partitions_as_they_were) {
  for (const size_t full : {0, 1, 2}) {
    tested_case() = "partition " + std::to_string(full);
    Scene scene(9);
    Variable variable(3, [&](size_t number) {
      const uint64_t below = number == full ? 20 : 400;
      TableSpec spec = spec_of(
          {hbm(scene.rule, 10), {"DRAM", std::nullopt, below * scene.rule.blocks * kBlockBytes}}, scene.rule);
      spec.name += std::to_string(number);
      return std::make_unique<Table>(spec);
    });
    std::vector<int64_t> keys = keys_from(0, 300);
    const std::vector<float> gradients = scene.some_gradients(keys.size());
    const auto apply = [&](size_t count) {
      const Scene::Apply on_device(*scene.device,
                                   {keys.begin(), keys.begin() + static_cast<ptrdiff_t>(count)}, gradients,
                                   *scene.streams[0]);
      variable.apply_on_device(on_device.on_device(), on_device.rows.address(), std::nullopt);
      scene.device->synchronise(*scene.streams[0]);
    };
    apply(60);
    variable.drain();
    const ExportedRows before = variable.export_rows();
    apply(keys.size());
    check_throws(ErrorKind::kStoreFull, "stepped" + std::to_string(full) + ": the batch brings",
                 [&] { variable.drain(); });
    check(variable.export_rows() == before, "a batch that had no room changed rows");
    apply(60);
    variable.drain();
    check(variable.export_rows().versions == std::vector<int64_t>(60, 2), "the next batch isn't applied");
  }
}

// Each thread uses another order, so that one would hold what the other waits for if steps didn't take tables
// in order.
TEST(threads_may_put_steps_of_tables_in_any_order) {
  tested_case() = "";
  Scene scene(3);
  std::vector<std::unique_ptr<Table>> tables;
  for (int i = 0; i < 3; ++i) {
    TableSpec spec = spec_of({hbm(scene.rule), {"DRAM", std::nullopt, 1 << 20}}, scene.rule);
    spec.name += std::to_string(i);
    tables.push_back(std::make_unique<Table>(spec));
  }
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      const gpu::OwnedStream stream(*scene.device);
      std::vector<const Table*> order;
      for (int i = 0; i < 3; ++i) order.push_back(tables[static_cast<size_t>((number + 2 * i) % 3)].get());
      std::deque<Scene::LookUp> look_ups;
      std::vector<Table::LookUpOnDevice> batches;
      for (const Table* const& table : order) {
        const Scene::LookUp& one = look_ups.emplace_back(*scene.device, std::vector<int64_t>{1, 2, 3, 4, 5},
                                                         stream, std::vector<float>(5 * kDim));
        batches.push_back({{&table, 1}, one.on_device(), one.rows.address()});
      }
      for (uint64_t round = 0; round < scaled_count(200); ++round) {
        Table::lookup_on_device(batches, LookUpPurpose::kTraining);
        if (round % 16 == 0) scene.device->synchronise(stream);
      }
      scene.device->synchronise(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Otherwise the step would wait until the long use ends.
TEST(a_waiting_step_is_refused_when_a_long_use_begins) {
  Scene scene(1);
  DeviceSteps& steps = *scene.table->parts().steps;
  std::optional<DeviceSteps::HostUse> use(std::in_place, &steps, DeviceSteps::Length::kShort);
  std::binary_semaphore is_over{0};
  bool is_refused = false;
  std::thread thread([&] {
    DeviceSteps* const table = &steps;
    const DeviceSteps::Turns turn({&table, 1}, *scene.streams[0], DeviceSteps::Effect::kReads);
    is_refused = turn.is_refused();
    is_over.release();
  });
  check(!is_over.try_acquire_for(std::chrono::milliseconds(50)), "a step began beside a use");
  const DeviceSteps::HostUse longer(&steps, DeviceSteps::Length::kLong);
  use.reset();
  check(is_over.try_acquire_for(std::chrono::seconds(60)), "the step waits for a use for long");
  thread.join();
  check(is_refused, "a step began beside a use for long");
}

// --- Several variables

// Variables of all rules with different dims, each with a plain one that has the expected rows.
struct Model {
  Model(Scene& of, size_t variables, size_t partitions = 1) : scene(of) {
    for (size_t v = 0; v < variables; ++v) {
      const Rule& rule = rule_of(v);
      for (const bool is_plain : {false, true}) {
        auto& made = is_plain ? plain : tables;
        made.push_back(std::make_unique<Variable>(is_plain ? 1 : partitions, [&](size_t number) {
          const TierSpec dram{"DRAM", std::nullopt, 1 << 20};
          TableSpec spec = spec_of(is_plain ? std::vector{dram} : std::vector{hbm(rule), dram}, rule);
          spec.name = "variable" + std::to_string(v) + "." + std::to_string(number);
          spec.dim = dim(v);
          spec.default_values.resize(static_cast<size_t>(2 * dim(v)));
          return std::make_unique<Table>(spec);
        }));
      }
    }
  }
  static int dim(size_t variable) { return static_cast<int>(3 + variable % 6); }

  struct Batch {
    std::vector<int64_t> of;
    std::vector<float> by;  // the gradient of each id
    gpu::DeviceArray<int64_t> ids;
    gpu::DeviceArray<float> gradients;
    gpu::DeviceArray<int64_t> bags;  // whose ids share a gradient; empty: each id has its own
    gpu::DeviceArray<float> out;
  };
  std::unique_ptr<Batch> some_batch(size_t variable, std::vector<int64_t> ids) {
    const auto floats = static_cast<size_t>(dim(variable));
    const bool has_bags = scene.below(2) == 0;
    std::vector<float> rows(floats * (has_bags ? 1 + scene.below(ids.size() + 1) : ids.size()));
    for (float& gradient : rows) gradient = static_cast<float>(scene.below(1000)) / 512 - 1;
    std::vector<int64_t> bags(has_bags ? ids.size() : 0);
    for (int64_t& bag : bags) bag = scene.below(rows.size() / floats);
    std::vector<float> by = has_bags ? std::vector<float>() : rows;
    for (const int64_t bag : bags) {
      const auto row = rows.begin() + bag * static_cast<ptrdiff_t>(floats);
      by.insert(by.end(), row, row + static_cast<ptrdiff_t>(floats));
    }
    auto batch = std::make_unique<Batch>(Batch{ids, by, gpu::DeviceArray<int64_t>(*scene.device, ids.size()),
                                               gpu::DeviceArray<float>(*scene.device, rows.size()),
                                               gpu::DeviceArray<int64_t>(*scene.device, bags.size()),
                                               gpu::DeviceArray<float>(*scene.device, by.size())});
    batch->ids.copy_from(batch->of.data(), batch->of.size(), stream());
    batch->gradients.copy_from(rows.data(), rows.size(), stream());
    batch->bags.copy_from(bags.data(), bags.size(), stream());
    return batch;
  }
  gpu::Stream stream() const { return *scene.streams[0]; }
  IdsOnDevice ids_of(const Batch& batch) const {
    return {batch.ids.address(), static_cast<uint32_t>(batch.of.size()), stream()};
  }
  static gpu::GradientRows gradients_of(size_t variable, const Batch& batch) {
    return {batch.gradients.address(), batch.gradients.count() / static_cast<size_t>(dim(variable)),
            batch.bags.count() == 0 ? gpu::DeviceAddress{} : batch.bags.address()};
  }
  void put_look_ups(const std::vector<std::unique_ptr<Batch>>& batches, LookUpPurpose purpose) {
    std::vector<std::vector<const Table*>> partitions;
    std::vector<Table::LookUpOnDevice> look_ups;
    for (size_t v = 0; v < batches.size(); ++v) {
      partitions.emplace_back(tables[v]->all().begin(), tables[v]->all().end());
      look_ups.push_back({partitions.back(), ids_of(*batches[v]), batches[v]->out.address()});
    }
    Table::lookup_on_device(look_ups, purpose);
  }
  void put_applies(const std::vector<std::unique_ptr<Batch>>& batches) {
    std::vector<Table::ApplyOnDevice> applies;
    for (size_t v = 0; v < batches.size(); ++v)
      applies.push_back({tables[v]->all(), ids_of(*batches[v]), gradients_of(v, *batches[v]), {}});
    Table::apply_on_device(applies, std::nullopt);
  }
  void apply_to_plain(size_t variable, const Batch& batch) {
    plain[variable]->apply_gradients(batch.of, batch.by.data(), std::nullopt);
  }
  void check_rows(size_t variable, const Batch& batch) {
    std::vector<float> rows(batch.by.size());
    std::vector<float> wanted(batch.by.size());
    batch.out.copy_to(rows.data(), rows.size(), stream());
    plain[variable]->lookup(batch.of, wanted.data(), LookUpPurpose::kTraining);
    check(rows == wanted, "a row of variable " + std::to_string(variable) + " is another");
  }

  Scene& scene;
  std::vector<std::unique_ptr<Variable>> tables;
  std::vector<std::unique_ptr<Variable>> plain;
};

TEST(steps_of_several_variables_give_the_results_of_separate_steps) {
  for (uint64_t seed = 0; seed < scaled_count(30); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    Model model(scene, 1 + scene.below(5), 1 + seed % 2);
    for (int step = 0; step < 12; ++step) {
      std::vector<std::unique_ptr<Model::Batch>> batches;
      for (size_t v = 0; v < model.tables.size(); ++v) {
        std::vector<int64_t> ids = scene.some_ids(60);
        if (scene.below(8) == 0) ids.clear();
        batches.push_back(model.some_batch(v, ids));
      }
      std::optional<DeviceSteps::HostUse> save;  // a save of one of them
      if (scene.below(4) == 0) {
        Variable& saved = *model.tables[scene.below(model.tables.size())];
        save.emplace(saved.partition(saved.partitions() - 1).parts().steps.get(), DeviceSteps::Length::kLong);
      }
      model.put_look_ups(batches, step % 3 != 0 ? LookUpPurpose::kTraining : LookUpPurpose::kServing);
      for (size_t v = 0; v < batches.size(); ++v) model.check_rows(v, *batches[v]);
      model.put_applies(batches);
      for (size_t v = 0; v < batches.size(); ++v) model.apply_to_plain(v, *batches[v]);
      scene.device->synchronise(model.stream());  // the arrays are freed
      if (scene.below(3) == 0 && !save) {
        for (const auto& table : model.tables) table->drain();
      }
    }
    for (size_t v = 0; v < model.tables.size(); ++v) {
      check(model.tables[v]->export_rows() == model.plain[v]->export_rows(),
            "variable " + std::to_string(v) + " is another");
    }
  }
}

TEST(a_step_of_many_tables_launches_no_more_kernels_than_one_table_and_waits_for_nothing) {
  if (kUnderThreadSanitizer) return;  // counts are no race; the steps are those of the test above
  const auto launches_and_waits = [](size_t variables, size_t partitions) {
    Scene scene(1);
    Model model(scene, 3 * variables, partitions);  // variables of all three rules
    std::vector<int64_t> ids = keys_from(0, 20);
    std::vector<std::unique_ptr<Model::Batch>> batches;
    for (size_t v = 0; v < model.tables.size(); ++v) batches.push_back(model.some_batch(v, ids));
    // The first round gives ids rows, and takes memory. A later one takes memory only if more steps are in
    // flight at once than in any round before, as the schedule has it.
    std::pair<uint64_t, uint64_t> counts;
    for (int round = 0; round < 2 || (round < 8 && counts.second != 0); ++round) {
      for (const auto& table : model.tables) table->drain();
      model.put_look_ups(batches, LookUpPurpose::kTraining);  // brings mirrors up to date
      scene.device->synchronise(model.stream());
      counts = {scene.device->launches(), scene.device->host_waits()};
      model.put_look_ups(batches, LookUpPurpose::kTraining);
      model.put_look_ups(batches, LookUpPurpose::kServing);
      model.put_applies(batches);
      counts = {scene.device->launches() - counts.first, scene.device->host_waits() - counts.second};
      scene.device->synchronise(model.stream());
    }
    return counts;
  };
  tested_case() = "";
  // Batches for several partitions take more kernels, which sort their ids by partition.
  for (const size_t least : {1, 2}) {
    const auto [launches, waits] = launches_and_waits(1, least);
    check(waits == 0, "the host waited");
    for (const size_t variables : {1, 2, 3}) {  // with no more tables than a launch takes
      const size_t partitions = least == 1 ? 1 : 6 / variables;
      const auto [more_launches, more_waits] = launches_and_waits(variables, partitions);
      check(more_waits == 0, "the host waited");
      check(more_launches == launches,
            std::to_string(more_launches) + " launches of " + std::to_string(variables) + " variables of " +
                std::to_string(partitions) + " partitions in place of " + std::to_string(launches));
    }
  }
}

// lab/pmemlab/model/prediction/gpu_tier.py (KERNELS) counts on this number of launches.
TEST(steps_launch_as_many_kernels_as_the_lab_says) {
  if (kUnderThreadSanitizer) return;
  constexpr uint64_t kOfALookUp = 6;
  constexpr uint64_t kOfAnUpdate = 21;
  Scene scene(1);
  Model model(scene, 1, 1);
  const std::vector<int64_t> ids = {1, 2, 3, 2};
  std::vector<std::unique_ptr<Model::Batch>> batches;
  batches.push_back(model.some_batch(0, ids));
  model.put_applies(batches);  // gives them rows
  model.tables.front()->drain();
  model.put_look_ups(batches, LookUpPurpose::kTraining);  // brings the mirror up to date
  const auto launches_of = [&scene](const std::function<void()>& step) {
    const uint64_t before = scene.device->launches();
    step();
    return scene.device->launches() - before;
  };
  const uint64_t look_up = launches_of([&] { model.put_look_ups(batches, LookUpPurpose::kTraining); });
  const uint64_t update = launches_of([&] { model.put_applies(batches); });
  check(look_up == kOfALookUp, std::to_string(look_up) + " launches of a look-up");
  check(update == kOfAnUpdate, std::to_string(update) + " launches of an update");
  scene.device->synchronise(model.stream());
}

// A step's memory depends on its batches: partitions share it.
TEST(a_step_of_many_partitions_takes_about_the_memory_of_one) {
  const auto step_bytes = [](size_t partitions) {
    Scene scene(1);
    Model model(scene, 1, partitions);
    std::vector<int64_t> ids = keys_from(0, 4000);
    std::vector<std::unique_ptr<Model::Batch>> batches;
    batches.push_back(model.some_batch(0, ids));
    std::vector<uint64_t> bytes{scene.device->allocated_bytes()};
    const auto measure = [&] { bytes.push_back(scene.device->allocated_bytes() - bytes.front()); };
    model.put_look_ups(batches, LookUpPurpose::kTraining);
    measure();
    model.put_applies(batches);
    measure();
    model.tables[0]->prefetch_on_device(model.ids_of(*batches[0]), model.tables[0]->next_turn());
    measure();
    scene.device->synchronise(model.stream());
    bytes.erase(bytes.begin());
    return bytes;
  };
  const std::vector<uint64_t> one = step_bytes(1);
  const std::vector<uint64_t> ten = step_bytes(10);
  for (size_t step = 0; step < one.size(); ++step) {
    check(ten[step] < one[step] * 2,
          std::to_string(ten[step]) + " bytes for ten partitions, " + std::to_string(one[step]) + " for one");
  }
}

// However far the program is ahead of the device.
TEST(many_steps_use_the_memory_of_a_few) {
  Scene scene(1);
  Model model(scene, 1, 1);
  std::vector<int64_t> ids = keys_from(0, 4000);
  std::vector<std::unique_ptr<Model::Batch>> batches;
  batches.push_back(model.some_batch(0, ids));
  const uint64_t before = scene.device->allocated_bytes();
  model.put_look_ups(batches, LookUpPurpose::kTraining);
  const uint64_t of_one = scene.device->allocated_bytes() - before;
  for (size_t step = 0; step < 5 * DeviceSteps::kMaxInFlight; ++step) {
    model.put_look_ups(batches, LookUpPurpose::kTraining);
  }
  const uint64_t of_all = scene.device->allocated_bytes() - before;
  check(of_all > of_one, "a step waits for each before it");
  check(of_all <= DeviceSteps::kMaxInFlight * of_one,
        std::to_string(of_all) + " bytes for all steps, " + std::to_string(of_one) + " for one");
  scene.device->synchronise(model.stream());
}

TEST(a_variable_whose_apply_fails_does_not_stop_others) {
  tested_case() = "";
  Scene scene(2);
  Model model(scene, 3);
  TableSpec small = spec_of({hbm(rule_of(1), 10), {"DRAM", std::nullopt, 1024}}, rule_of(1));
  small.name = "small";
  small.dim = Model::dim(1);
  small.default_values.resize(static_cast<size_t>(2 * small.dim));
  model.tables[1] =
      std::make_unique<Variable>(1, [&small](size_t) { return std::make_unique<Table>(small); });
  std::vector<int64_t> ids = keys_from(0, 60);
  std::vector<std::unique_ptr<Model::Batch>> batches;
  for (size_t v = 0; v < 3; ++v) batches.push_back(model.some_batch(v, ids));
  model.put_applies(batches);
  scene.device->synchronise(model.stream());
  check_throws(ErrorKind::kStoreFull, "small: the batch brings 60 new rows",
               [&] { model.put_look_ups(batches, LookUpPurpose::kTraining); });
  check(model.tables[1]->export_rows().keys.empty(), "a batch was applied in part");
  model.put_look_ups(batches, LookUpPurpose::kTraining);
  for (const size_t v : {0, 2}) {
    model.apply_to_plain(v, *batches[v]);
    model.check_rows(v, *batches[v]);
  }
}

TEST(a_batch_that_does_not_fit_on_the_device_names_its_variable_and_does_not_stop_others) {
  for (const size_t large : {0, 2}) {
    tested_case() = "variable " + std::to_string(large);
    Scene scene(2);
    Model model(scene, 3);
    std::vector<std::unique_ptr<Model::Batch>> batches;
    for (size_t v = 0; v < 3; ++v) {
      std::vector<int64_t> ids = keys_from(0, v == large ? 90'000 : 60);
      batches.push_back(model.some_batch(v, ids));
    }
    check_throws(ErrorKind::kStoreFull,
                 "variable" + std::to_string(large) + ".0: a batch of 90000 ids doesn't fit",
                 [&] { model.put_applies(batches); });
    scene.device->synchronise(model.stream());
    check(model.tables[large]->export_rows().keys.empty(), "it was applied in part");
    for (size_t v = 0; v < 3; ++v) {
      if (v == large) continue;
      model.apply_to_plain(v, *batches[v]);
      check(model.tables[v]->export_rows().values == model.plain[v]->export_rows().values,
            "another variable isn't trained");
    }
  }
}

// All floats of a row are equal and only grow: each look-up must give whole rows, none older than a row that
// was read before.
void check_threads(size_t partitions) {
  tested_case() = std::to_string(partitions) + " partitions";
  Scene scene(8);
  const Rule rule{"SGD", {{"learning_rate", -1.0}}, 1};
  TableSpec spec = spec_of({hbm(rule), {"DRAM", std::nullopt, 1 << 20}}, rule);
  spec.default_values.assign(kDim, 0.0f);
  Variable table(partitions, [&spec](size_t number) {
    TableSpec one = spec;
    one.name += std::to_string(number);
    return std::make_unique<Table>(one);
  });
  std::vector<int64_t> keys = keys_from(0, 100);
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      const gpu::OwnedStream stream(*scene.device);
      const Scene::LookUp look_up(*scene.device, keys, stream, std::vector<float>(keys.size() * kDim));
      std::vector<float> newest(keys.size(), 0.0f);
      while (!done.load()) {
        table.lookup_on_device(look_up.on_device(), look_up.rows.address(), LookUpPurpose::kTraining);
        const std::vector<float> rows = Scene::rows_of(look_up);
        for (size_t i = 0; i < rows.size(); ++i) {
          check(rows[i] == rows[i / kDim * kDim], "a row is torn");
          check(rows[i] >= newest[i / kDim], "a row is older than one that was read");
          if (i % kDim == 0) newest[i / kDim] = rows[i];
        }
      }
    });
  }
  const uint64_t rounds = scaled_count(100);
  std::vector<std::thread> writers;
  for (uint64_t writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      const gpu::OwnedStream stream(*scene.device);
      std::mt19937_64 random(writer);
      for (uint64_t i = 0; i < rounds; ++i) {
        const std::vector<int64_t> ids = {static_cast<int64_t>(random() % 100),
                                          static_cast<int64_t>(random() % 100)};
        const std::vector<float> gradients(ids.size() * kDim, 1.0f);
        if (random() % 2 == 0) {
          table.apply_gradients(ids, gradients.data(), std::nullopt);
        } else {
          const Scene::Apply apply(*scene.device, ids, gradients, stream);
          table.apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt);
          if (random() % 4 != 0) scene.device->synchronise(stream);
          if (random() % 4 == 0)
            table.lookup_on_device(apply.on_device(), apply.rows.address(), LookUpPurpose::kServing);
          scene.device->synchronise(stream);  // the arrays are freed
        }
        if (i % 20 == 0) table.drain();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  done.store(true);
  for (std::thread& reader : readers) reader.join();
  std::vector<float> rows(keys.size() * kDim);
  table.lookup(keys, rows.data(), LookUpPurpose::kTraining);
  float sum = 0;
  for (size_t i = 0; i < rows.size(); i += kDim) sum += rows[i];
  check(sum == static_cast<float>(2 * 2 * rounds), "an update is lost, or was applied twice");
}

TEST(threads_use_streams_of_their_own_while_others_train_and_move_rows) {
  for (const size_t partitions : {1, 2}) check_threads(partitions);
}

}  // namespace
}  // namespace embstore
