// Tests tables with HBM above a durable pool, on the emulated device: checkpoints that are made between and
// beside steps on the device and operations of the host have the rows of their moments, bit for bit.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/emulated/emulated_device.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/tests.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/hbm/testing/step_scene.h"

// On the emulated device, a thread that puts work on a stream may run a stream's function at once:
// HbmTier::sync_mirror_to() does so under the tier's mutex. That function takes locks under which the host
// takes the same mutex. But while a step is in flight, DeviceSteps keeps the host from doing so, which the
// sanitizer doesn't know. On a GPU the function runs on a thread of its own.
extern "C" const char* __tsan_default_suppressions() {
  return "deadlock:embstore::HbmTier::sync_mirror_to\n";
}

namespace embstore {
namespace {

using gpu::EmulatedDevice;

constexpr int kDim = 4;
constexpr uint64_t kRowBytes = 2 * kDim * sizeof(float);
constexpr uint64_t kRecordBytes = 256;  // of a record in a pool
constexpr uint64_t kHbmRows = 30;
constexpr uint64_t kDramRows = 20;
constexpr int64_t kKeys = 120;
constexpr const char* kReason = "it fell off the bus";

// The most rows in the tiers above a pool, including rows on the move: in the stage, HBM and DRAM.
constexpr uint64_t kRowsAbove = kHbmRows + kDramRows + 3 * 256;

// A device on which the kernel with this name does nothing.
class ForgetfulDevice final : public EmulatedDevice {
 public:
  ForgetfulDevice(uint64_t seed, std::string_view forgotten)
      : EmulatedDevice({.memory_bytes = 8 << 20, .seed = seed}), forgotten_(forgotten) {}

 private:
  void launch_kernel(const AnyKernel& kernel, gpu::Grid grid, const void* arguments,
                     gpu::Stream stream) override {
    if (kernel.name == forgotten_) return;
    EmulatedDevice::launch_kernel(kernel, grid, arguments, stream);
  }

  const std::string_view forgotten_;
};

enum class Below { kNothing, kSsd };

TableSpec spec_of(std::vector<TierSpec> tiers) {
  std::vector<float> defaults(4 * kDim);
  std::iota(defaults.begin(), defaults.end(), 0.25f);
  return {.name = "durable",
          .dim = kDim,
          .default_values = std::move(defaults),
          .optimizer = "Adagrad",
          .optimizer_params = {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}},
          .tiers = std::move(tiers)};
}

std::vector<TierSpec> above_and_in_a_pool(const std::string& path, uint64_t pool_rows) {
  const uint64_t places = PoolTier::kHeadroomSlots + kRowsAbove + pool_rows;
  std::vector<TierSpec> tiers = {{"HBM", std::nullopt, kHbmRows * kRowBytes},
                                 {"DRAM", std::nullopt, kDramRows * kRowBytes},
                                 {"PMEM_POOL", path, places * kRecordBytes}};
  tiers.front().gpu.name = "emulated";
  return tiers;
}

// A table of HBM, DRAM and a pool, and one in DRAM that has the expected rows.
class Scene : public StepScene<ForgetfulDevice> {
 public:
  explicit Scene(uint64_t seed, Below below_pool = Below::kNothing, uint64_t pool_rows = 1000,
                 std::string_view forgotten = "")
      : StepScene(seed, std::make_shared<ForgetfulDevice>(seed, forgotten), kKeys, kDim),
        below_(below_pool),
        pool_rows_(pool_rows),
        plain(spec_of({{"DRAM", std::nullopt, 1 << 20}})) {
    open_table();
  }

  ~Scene() { finish(); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  void open_table() {
    std::vector<TierSpec> tiers =
        above_and_in_a_pool(directory / "rows", pool_rows_ + 16);  // and for the header
    TierSpec ssd{"SSDHASH", directory / "rows.ssd", std::nullopt};
    ssd.ssd_hash.file_bytes = 32 << 10;
    ssd.ssd_hash.buffer_bytes = 128 << 10;
    if (below_ == Below::kSsd) tiers.push_back(ssd);
    table = std::make_unique<Table>(spec_of(tiers));
  }
  // Ends the process, so to speak, and opens the table again on another device.
  void reopen() {
    finish();
    table.reset();
    device.reset();
    open(std::make_shared<ForgetfulDevice>(random(), ""));
    pending_.clear();
    open_table();
  }

  void train(const std::vector<int64_t>& ids) {
    const std::vector<float> gradients = some_gradients(ids.size());
    table->apply_gradients(ids, gradients.data(), std::nullopt);
    plain.apply_gradients(ids, gradients.data(), std::nullopt);
  }
  // Trains all keys, and waits until their rows lie where they belong.
  void train_all() {
    train(keys_from(0, kKeys));
    table->drain();
  }
  void train_on_device(const std::vector<int64_t>& ids) {
    const std::vector<float> gradients = some_gradients(ids.size());
    put_apply(ids, gradients);
    plain.apply_gradients(ids, gradients.data(), std::nullopt);
  }
  void put_apply(const std::vector<int64_t>& ids, const std::vector<float>& gradients,
                 const BatchConditions& conditions = {}) {
    const BatchOnDevice& apply =
        batches_.emplace_back(*device, ids, gradients, *streams[below(streams.size())]);
    table->apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt, conditions);
  }
  void serve(const std::vector<int64_t>& ids) {
    std::vector<float> rows(ids.size() * kDim);
    table->lookup(ids, rows.data(), LookUpPurpose::kServing);
  }
  // Serves a batch on the device, where accesses are counted.
  void serve_on_device(const std::vector<int64_t>& ids) {
    const BatchOnDevice& look_up = batches_.emplace_back(*device, ids, kDim, *streams[below(streams.size())]);
    table->lookup_on_device(look_up.on_device(), look_up.rows.address(), LookUpPurpose::kServing);
  }
  void drop(const std::vector<int64_t>& keys) {
    check(table->drop(keys) == plain.drop(keys), "other keys had rows");
  }

  // Begins a checkpoint with the rows of now. Returns its number.
  uint64_t begin() {
    const std::string path = directory / ("state" + std::to_string(states_++));
    checkpoint::Writer file(path, RowLayout(kDim, /*slot_count=*/1), {});
    const BegunCheckpoint begun = table->begin_persist(file, /*waiting_keys=*/false);
    file.finish();
    moments_[begun.number] = {path, begun.state, plain.export_rows()};
    check(begun.rows == moments_[begun.number].rows.keys.size(), "a checkpoint has other rows");
    pending_.push_back(begun.number);
    return begun.number;
  }
  void finish_one() {
    table->finish_persist(pending_.front(), log::CheckpointId{});
    pending_.pop_front();
  }
  void drop_pending() {
    table->drop_persisted(pending_.back());
    pending_.pop_back();
  }
  bool any_pending() const { return !pending_.empty(); }
  uint64_t persist() {
    const uint64_t number = begin();
    while (any_pending()) finish_one();
    return number;
  }
  size_t pending() const { return pending_.size(); }
  std::vector<uint64_t> kept() const {
    std::vector<uint64_t> numbers;
    for (const log::KeptCheckpoint& checkpoint : table->persisted()) numbers.push_back(checkpoint.number);
    return numbers;
  }
  void restore(uint64_t number) {
    const Moment& moment = moments_.at(number);
    table->restore_persisted(number, {}, {{moment.path}}, moment.state,
                             /*waiting_keys=*/false);
  }
  bool is_at(uint64_t number) const { return table->export_rows() == moments_.at(number).rows; }
  // Reopens the table, as another process would, and restores the checkpoint.
  void check_restored(uint64_t number, const char* what) {
    reopen();
    restore(number);
    check(is_at(number), what);
  }
  bool is_plain() const { return table->export_rows() == plain.export_rows(); }

  std::vector<int64_t> keys_in_level(int32_t level, int64_t end = kKeys) const {
    const std::vector<int64_t> keys = keys_from(0, end);
    std::vector<int32_t> levels(keys.size());
    table->lookup_tier(keys, levels.data());
    std::vector<int64_t> found;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (levels[i] == level) found.push_back(keys[i]);
    }
    return found;
  }
  // Returns the number of rows that were written to the pool so far: a header and floats for each.
  uint64_t written_to_pool() const {
    return accesses_of(2, [](Access access) { return access != Access::kLoad; }) / 2;
  }
  // Returns the number of rows that the device has updated so far.
  uint64_t updated_on_device() const {
    return accesses_of(0, [](Access access) { return access == Access::kUpdate; });
  }

 private:
  template <class IsWanted>
  uint64_t accesses_of(size_t level, IsWanted is_wanted) const {
    const TableStats stats = table->stats();
    uint64_t accesses = 0;
    for (const AccessCount& count : stats.tiers[level].accesses) {
      if (is_wanted(count.access)) accesses += count.accesses;
    }
    return accesses;
  }
  // Work on the streams uses memory that is about to be freed.
  void finish() {
    for (const auto& stream : streams)
      gpu::ignoring_a_lost_device([&] { device->synchronise(gpu::Stream(*stream)); });
    gpu::ignoring_a_lost_device([&] { table->synchronise(); });
    batches_.clear();
    streams.clear();
  }

  const Below below_;
  const uint64_t pool_rows_;
  struct Moment {
    std::string path;
    TableState state;
    ExportedRows rows;
  };
  std::map<uint64_t, Moment> moments_;  // by the number of the checkpoint
  std::deque<uint64_t> pending_;
  uint64_t states_ = 0;

 public:
  Table plain;
  std::unique_ptr<Table> table;

 private:
  std::deque<BatchOnDevice> batches_;
};

// Makes checkpoints beside steps on the device and operations of the host. Returns false if one has wrong
// rows.
bool are_checkpoints_right(Scene& scene) {
  for (int i = 0; i < 60; ++i) {
    switch (scene.below(12)) {
      case 0: scene.train(scene.some_ids(40)); break;
      case 1: scene.table->drain(); break;
      case 2: scene.serve(scene.some_ids(30)); break;
      case 3: scene.serve_on_device(scene.some_ids(30)); break;
      case 4: scene.table->prefetch(scene.some_ids(40), scene.table->next_turn()); break;
      case 5: scene.drop(scene.some_ids(3)); break;
      case 6:
        if (scene.any_pending() && scene.below(4) == 0) scene.drop_pending();
        [[fallthrough]];
      case 7:
        if (scene.any_pending()) scene.finish_one();
        break;
      case 8:
        if (scene.pending() < 3 && scene.kept().size() < 6) scene.begin();
        break;
      default: scene.train_on_device(scene.some_ids(60));
    }
  }
  if (!scene.is_plain()) return false;
  scene.persist();
  scene.train_on_device(scene.some_ids(60));  // is lost
  scene.table->synchronise();
  std::vector<uint64_t> kept = scene.kept();
  scene.reopen();
  if (scene.kept() != kept) return false;
  for (; !kept.empty(); kept.pop_back()) {  // a restore drops newer checkpoints
    scene.restore(kept.back());
    if (!scene.is_at(kept.back())) return false;
  }
  return true;
}

TEST(checkpoints_between_steps_have_the_rows_of_their_moments) {
  for (uint64_t seed = 0; seed < scaled_count(60); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const Below below = seed % 3 == 0 ? Below::kSsd : Below::kNothing;
    Scene scene(seed, below, below == Below::kSsd ? 60 : 1000);
    check(are_checkpoints_right(scene),
          "a checkpoint isn't what the table was; " + scene.device->last_schedule());
  }
}

TEST(a_step_that_does_not_report_the_rows_it_changes_is_noticed) {
  if (kUnderThreadSanitizer) return;  // the mistakes are no races; the steps are those of the test above
  for (const std::string_view forgotten : {"embstore_list_marked", "embstore_set_marks"}) {
    tested_case() = forgotten;
    uint64_t noticed = 0;
    for (uint64_t seed = 0; seed < 16; ++seed) {
      Scene scene(seed, Below::kNothing, 1000, forgotten);
      try {
        noticed += !are_checkpoints_right(scene);
      } catch (const Error&) {
        ++noticed;
      }
    }
    check(noticed >= 4, "in " + std::to_string(noticed) + " schedules alone");
  }
  tested_case() = "";
}

TEST(a_checkpoint_writes_changed_rows_only) {
  Scene scene(1);
  scene.train_all();
  scene.persist();
  const uint64_t before = scene.written_to_pool();
  scene.persist();
  check(scene.written_to_pool() == before, "rows were written that had not changed");
  // Now rows of HBM, which the device changes again and again.
  std::vector<int64_t> in_hbm = scene.keys_in_level(0);
  check(in_hbm.size() == kHbmRows, "HBM isn't full");
  in_hbm.resize(7);
  for (int i = 0; i < 5; ++i) scene.train_on_device(in_hbm);
  scene.table->synchronise();
  check(scene.written_to_pool() == before, "rows of HBM were written before a checkpoint");
  scene.persist();
  check(scene.written_to_pool() == before + in_hbm.size(),
        std::to_string(scene.written_to_pool() - before) + " rows were written");
  check(scene.is_plain(), "the rows are others");
}

// The copy of an unchanged row stays valid, wherever the row has been meanwhile.
TEST(rows_that_did_not_change_go_down_to_their_copies) {
  Scene scene(2);
  scene.train_all();
  scene.persist();
  const uint64_t before = scene.written_to_pool();
  for (int i = 0; i < 3; ++i) {
    const std::vector<int64_t> below = scene.keys_in_level(2);
    scene.table->prefetch(std::vector<int64_t>(below.begin(), below.begin() + kHbmRows),
                          scene.table->next_turn());
    scene.table->drain();
    scene.table->forget_prefetched();
    scene.table->drain();
  }
  check(scene.table->stats().promotions >= 3 * kHbmRows, "rows haven't come up");
  check(scene.written_to_pool() == before, "rows were written that had not changed");
}

TEST(the_device_changes_no_row_that_a_checkpoint_still_wants) {
  Scene scene(3);
  scene.train_all();
  const uint64_t number = scene.begin();
  const std::vector<int64_t> in_hbm = scene.keys_in_level(0);
  for (int i = 0; i < 3; ++i) scene.train_on_device(in_hbm);
  check(scene.updated_on_device() == 0, "the device has updated rows");
  scene.drop({in_hbm[0], in_hbm[1]});
  scene.finish_one();
  // From here on the device updates rows again.
  scene.table->drain();
  const std::vector<int64_t> now_in_hbm = scene.keys_in_level(0);
  scene.train_on_device(now_in_hbm);
  scene.table->synchronise();
  check(scene.updated_on_device() == now_in_hbm.size(), "rows of HBM went by the host");
  check(scene.is_plain(), "the rows are others");
  scene.check_restored(number, "the checkpoint has rows of later");
}

TEST(the_device_updates_rows_while_rows_below_it_are_written) {
  Scene scene(9);
  scene.train_all();
  scene.persist();
  const std::vector<int64_t> in_hbm = scene.keys_in_level(0);
  // Rows that changed go down to DRAM; the rows above them haven't changed.
  const std::vector<int64_t> below = scene.keys_in_level(2);
  scene.train({below.begin(), below.begin() + 10});
  for (int i = 0; i < 3; ++i) {
    scene.serve(in_hbm);
    scene.table->drain();
  }
  check(scene.keys_in_level(0) == in_hbm, "other rows are in HBM");
  const uint64_t before = scene.updated_on_device();
  const uint64_t number = scene.begin();
  check(scene.table->parts().store->cache()->wanted_count() == 10, "another number of rows is wanted");
  scene.train_on_device(in_hbm);
  scene.table->synchronise();
  check(scene.updated_on_device() == before + in_hbm.size(), "rows of HBM went by the host");
  // The rows that are still wanted come up, and go down to HBM.
  for (int i = 0; i < 3; ++i) {
    scene.serve({below.begin(), below.begin() + 10});
    scene.table->drain();
  }
  scene.train_on_device({below.begin(), below.begin() + 10});
  scene.table->synchronise();
  check(scene.updated_on_device() > before + in_hbm.size(), "no row has come to HBM");
  scene.finish_one();
  scene.check_restored(number, "the checkpoint has rows of later");
}

// And the rows that the step was to change are as before, and so are their copies.
TEST(a_checkpoint_reports_a_steps_error_instead_of_beginning) {
  Scene scene(10);
  scene.train_all();
  scene.persist();
  const std::vector<int64_t> keys = scene.keys_in_level(0);
  {
    gpu::DeviceArray<int64_t> refused(*scene.device, 1);
    const int64_t reason = 1;
    refused.copy_from(&reason, 1, *scene.streams[0]);
    scene.device->synchronise(gpu::Stream(*scene.streams[0]));
    scene.put_apply(keys, scene.some_gradients(keys.size()), {{}, refused.address(), {"a bad batch"}});
    check_throws(ErrorKind::kInvalidArgument, "a bad batch", [&] { scene.begin(); });
  }
  check(scene.kept().size() == 1, "a checkpoint was begun");
  scene.plain.apply_gradients({}, nullptr, std::nullopt);  // the refused batch counts as an apply
  scene.train_on_device(keys);
  const uint64_t number = scene.persist();
  scene.check_restored(number, "a row that changed was taken for its copy");
}

TEST(a_step_that_changes_rows_with_clean_copies_waits_for_nothing) {
  Scene scene(4);
  scene.train_all();
  const std::vector<int64_t> in_hbm = scene.keys_in_level(0);
  const std::vector<float> gradients = scene.some_gradients(in_hbm.size());
  const BatchOnDevice apply(*scene.device, in_hbm, gradients, *scene.streams[0]);
  scene.device->synchronise(apply.stream);
  const gpu::OwnedEvent end(*scene.device);
  for (int i = 0; i < 4; ++i) {
    scene.persist();
    const uint64_t waits = scene.device->host_waits();
    scene.table->apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt);
    scene.device->record(end, apply.stream);
    while (!scene.device->query(end)) {
    }
    check(i == 0 || scene.device->host_waits() == waits, "the host waited");
    scene.plain.apply_gradients(in_hbm, gradients.data(), std::nullopt);
  }
  check(scene.is_plain(), "the rows are others");
}

// Returns true if a batch is refused because the pool has too few places; then nothing may have changed.
bool is_refused(Scene& scene, const std::vector<int64_t>& keys) {
  const ExportedRows before = scene.table->export_rows();
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  try {
    scene.put_apply(keys, gradients);
    scene.table->synchronise();
  } catch (const Error& error) {
    check(error.kind() == ErrorKind::kStoreFull, std::string("another error: ") + error.what());
    check(std::string(error.what()).find("persist, which lets older rows go") != std::string::npos,
          std::string("it doesn't say what to do: ") + error.what());
    check(scene.table->export_rows() == before, "a batch that was refused changed rows");
    return true;
  }
  scene.plain.apply_gradients(keys, gradients.data(), std::nullopt);
  return false;
}

TEST(a_full_pool_refuses_a_batch_on_the_device_before_anything_changes) {
  constexpr size_t kBatch = 50;
  Scene scene(5, Below::kNothing, /*pool_rows=*/200);
  int64_t end = 0;
  while (!is_refused(scene, keys_from(end, kBatch))) end += kBatch;
  const uint64_t places = scene.table->parts().store->tiers().pool()->slot_count() - PoolTier::kHeadroomSlots;
  check(end == static_cast<int64_t>(places / kBatch * kBatch),
        "refused after " + std::to_string(end) + " rows of " + std::to_string(places));
  // Rows of HBM have claims, so a checkpoint is possible. Afterwards they have copies, and no place is left
  // for changed rows.
  scene.table->drain();
  scene.persist();
  check(is_refused(scene, keys_from(0, end)), "all rows have changed");
  const std::vector<int64_t> in_hbm = scene.keys_in_level(0, end);
  check(!is_refused(scene, {in_hbm[0], in_hbm[1]}), "there is no room for two rows");
  check(scene.is_plain(), "the rows are others");
  // Makes one more checkpoint and drops the one before, which frees its places.
  scene.persist();
  scene.table->drop_persisted(scene.kept().front());
  const std::vector<uint64_t> kept = scene.kept();
  scene.reopen();
  scene.restore(kept.back());
  check(scene.is_plain(), "the last checkpoint has other rows");
}

// Steps claim all places that they may need in advance, and give back the rest.
TEST(places_that_steps_do_not_need_are_given_back) {
  Scene scene(6);
  scene.train_all();
  scene.persist();
  const PoolTier& pool = *scene.table->parts().store->tiers().pool();
  const uint64_t before = pool.free_slots();
  const std::vector<int64_t> in_hbm = scene.keys_in_level(0);
  for (int i = 0; i < 20; ++i) {
    std::vector<int64_t> ids(40);
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = in_hbm[k % 10];
    scene.train_on_device(ids);
  }
  scene.table->synchronise();
  check(pool.free_slots() == before - 10, "rows that changed have no places of their own");
  scene.persist();
  scene.table->drop_persisted(scene.kept().front());
  check(pool.free_slots() == before, "places were lost");
}

// Places that a step claims and turns out not to need must not be missing to another batch.
TEST(the_host_gets_the_last_places_that_a_waiting_step_does_not_need) {
  constexpr size_t kBatch = 50;
  Scene scene(8, Below::kNothing, /*pool_rows=*/200);
  const PoolTier& pool = *scene.table->parts().store->tiers().pool();
  int64_t end = 0;
  for (; pool.free_slots() >= PoolTier::kHeadroomSlots + 2 * kBatch; end += kBatch) {
    scene.train(keys_from(end, kBatch));
  }
  // Rows that have changed already, so that they have places; each occurs several times in a batch.
  std::vector<int64_t> changed(kBatch);
  for (size_t i = 0; i < changed.size(); ++i) changed[i] = static_cast<int64_t>(i % 10);
  scene.train(changed);
  const uint64_t free = pool.free_slots();
  std::optional<Operation> use(std::in_place, scene.table->parts());
  const std::vector<float> gradients = scene.some_gradients(kBatch);
  const BatchOnDevice apply(*scene.device, changed, gradients, *scene.streams[0]);
  std::thread thread(
      [&] { scene.table->apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt); });
  // The step waits until this thread no longer uses the rows.
  for (int i = 0; i < 200 && pool.free_slots() == free; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string refused;
  try {
    scene.train(keys_from(end, free - PoolTier::kHeadroomSlots));
  } catch (const Error& error) {
    refused = error.what();
  }
  use.reset();
  thread.join();
  check(refused.empty(), refused);
  scene.plain.apply_gradients(changed, gradients.data(), std::nullopt);
  check(scene.is_plain(), "the rows are others");
  scene.device->synchronise(apply.stream);  // the batch is freed
}

TEST(a_batch_on_the_device_makes_room_in_a_pool_above_ssd) {
  Scene scene(7, Below::kSsd, /*pool_rows=*/PoolTier::kHeadroomSlots / 4);
  for (int64_t first = 0; first < 4000; first += 100) {
    check(!is_refused(scene, keys_from(first, 100)), "a batch was refused");
  }
  check(scene.is_plain(), "the rows are others");
}

// Every batch adds 1 to the floats of its rows, so the floats of a row equal its frequency at any moment.
TEST(threads_train_on_streams_while_others_make_checkpoints) {
  const TemporaryDirectory directory;
  const auto device = std::make_shared<ForgetfulDevice>(8, "");
  const auto opened = ProcessRegistry<std::string, gpu::Device>::get("emulated", [&] { return device; });
  check(opened == device, "another device is open");
  TableSpec spec = spec_of(above_and_in_a_pool(directory / "rows", 2000));
  spec.default_values.assign(kDim, 0.0f);
  spec.optimizer = "SGD";
  spec.optimizer_params = {{"learning_rate", -1.0}};
  std::map<uint64_t, BegunCheckpoint> begun;
  const auto path_of = [&](size_t number) { return directory / ("state" + std::to_string(number)); };
  const uint64_t rounds = scaled_count(150);
  constexpr uint64_t kIds = 3;
  {
    Table table(spec);
    std::atomic<int> writing{2};
    const auto persist = [&] {
      checkpoint::Writer file(path_of(begun.size()), RowLayout(kDim, /*slot_count=*/0), {});
      const BegunCheckpoint one = table.begin_persist(file, /*waiting_keys=*/false);
      file.finish();
      table.finish_persist(one.number, log::CheckpointId{});
      begun[one.number] = one;
      if (begun.size() > 4) table.drop_persisted(std::next(begun.rbegin(), 4)->first);
    };
    std::vector<std::thread> writers;
    for (uint64_t writer = 0; writer < 2; ++writer) {
      writers.emplace_back([&, writer] {
        const gpu::OwnedStream stream(*device);
        std::mt19937_64 random(writer);
        for (uint64_t i = 0; i < rounds; ++i) {
          std::vector<int64_t> ids(kIds);
          for (int64_t& id : ids) id = static_cast<int64_t>(random() % kKeys);
          const std::vector<float> ones(ids.size() * kDim, 1.0f);
          const BatchOnDevice apply(*device, ids, ones, stream);
          if (random() % 3 == 0) {
            table.apply_gradients(ids, ones.data(), std::nullopt);
          } else {
            table.apply_on_device(apply.on_device(), apply.rows.address(), std::nullopt);
          }
          device->synchronise(gpu::Stream(stream));  // the batch is freed
        }
        --writing;
      });
    }
    while (writing.load() != 0) persist();
    for (std::thread& writer : writers) writer.join();
    persist();
  }
  Table table(spec);
  std::vector<log::KeptCheckpoint> kept = table.persisted();
  check(kept.size() >= 2, "there were few checkpoints");
  bool is_last = true;
  for (; !kept.empty(); kept.pop_back()) {
    const uint64_t number = kept.back().number;
    const auto at = static_cast<size_t>(std::distance(begun.begin(), begun.find(number)));
    table.restore_persisted(number, {}, {{path_of(at)}}, begun[number].state,
                            /*waiting_keys=*/false);
    const ExportedRows rows = table.export_rows();
    int64_t updates = 0;
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      updates += rows.frequencies[i];
      for (size_t d = 0; d < kDim; ++d) {
        check(rows.values[i * kDim + d] == static_cast<float>(rows.frequencies[i]), "a row is torn");
      }
    }
    check(updates % static_cast<int64_t>(kIds) == 0, "a checkpoint has a part of a batch");
    const auto all = static_cast<int64_t>(2 * kIds * rounds);
    check(is_last ? updates == all : updates <= all, "the last checkpoint lacks an update");
    is_last = false;
  }
}

TEST(the_last_checkpoint_can_be_restored_after_the_gpu_is_lost) {
  for (uint64_t seed = 0; seed < scaled_count(20); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    Scene scene(seed);
    for (int i = 0; i < 6; ++i) scene.train_on_device(scene.some_ids(60));
    scene.persist();
    const std::vector<uint64_t> kept = scene.kept();
    scene.train_on_device(scene.some_ids(60));
    scene.table->drain();
    scene.train_on_device(scene.keys_in_level(0));
    scene.table->synchronise();
    const bool is_pending = seed % 2 == 0;
    if (is_pending) scene.begin();
    scene.device->lose(kReason);
    if (is_pending) {
      // Rows that the checkpoint wants are lost.
      const std::vector<int64_t> in_hbm = scene.keys_in_level(0);
      check_throws(ErrorKind::kDeviceLost, kReason, [&] { scene.finish_one(); });
      check_throws(ErrorKind::kDeviceLost, kReason, [&] { scene.table->drop(in_hbm); });
      check(scene.keys_in_level(0) == in_hbm, "rows have gone");
      scene.drop_pending();
      scene.table->drop(in_hbm);
    }
    scene.reopen();
    check(scene.kept() == kept, "other checkpoints are kept");
    scene.restore(kept.back());
    check(scene.is_at(kept.back()), "the rows aren't those of the last checkpoint");
  }
}

}  // namespace
}  // namespace embstore
