// Tests of a table whose GPU is lost: it reports that, rows of lower tiers are whole, and what was kept
// before comes back.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/emulated/emulated_device.h"
#include "gpu/open_device.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/tests.h"

namespace embstore {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kRowBytes = kDim * sizeof(float);
constexpr uint64_t kHbmRows = 40;
constexpr int64_t kKeys = 100;
constexpr const char* kReason = "it fell off the bus";

// A table with HBM, DRAM and SSDHASH, and its device.
struct Scene {
  explicit Scene(const std::string& path)
      : device(gpu::open_device({.name = "emulated", .nvrtc = "", .cache_directory = ""})) {
    open(path);
    const std::vector<int64_t> keys = all_keys();
    // Key k has the row k.
    for (int64_t key = 0; key < kKeys; ++key) add({key}, static_cast<float>(key));
    table->drain();
    std::vector<int32_t> tiers(keys.size());
    table->lookup_tier(keys, tiers.data());
    for (size_t i = 0; i < keys.size(); ++i) (tiers[i] == 0 ? in_hbm : below).push_back(keys[i]);
    check(in_hbm.size() == kHbmRows, "the tier isn't full");
  }
  void open(const std::string& path) {
    TableSpec spec = spec_without_gpu(path);
    spec.tiers.insert(spec.tiers.begin(), TierSpec{"HBM", std::nullopt, kHbmRows * kRowBytes});
    spec.tiers.front().gpu.name = "emulated";
    table = std::make_unique<Table>(spec);
  }
  static TableSpec spec_without_gpu(const std::string& path) {
    TierSpec ssd{"SSDHASH", path, std::nullopt};
    ssd.keeps_rows = true;
    return {.name = "lost",
            .dim = kDim,
            .default_values = std::vector<float>(kDim, 0.0f),
            .optimizer = "SGD",
            .optimizer_params = {{"learning_rate", -1.0}},
            .tiers = {{"DRAM", std::nullopt, 20 * kRowBytes}, ssd}};
  }
  void lose() { dynamic_cast<gpu::EmulatedDevice&>(*device).lose(kReason); }

  static std::vector<int64_t> all_keys() { return keys_from(0, kKeys); }
  void add(const std::vector<int64_t>& keys, float value) {
    const std::vector<float> gradients(keys.size() * kDim, value);
    table->apply_gradients(keys, gradients.data(), std::nullopt);
  }
  // Reads rows as training does, without changing them.
  std::vector<float> read(const std::vector<int64_t>& keys) const {
    std::vector<float> rows(keys.size() * kDim);
    table->lookup(keys, rows.data(), LookUpPurpose::kTraining);
    return rows;
  }
  void check_rows(const std::vector<int64_t>& keys, float more = 0.0f) const {
    const std::vector<float> rows = read(keys);
    for (size_t i = 0; i < rows.size(); ++i) {
      check(rows[i] == static_cast<float>(keys[i / kDim]) + more, "a row is another");
    }
  }

  std::shared_ptr<gpu::Device> device;
  std::unique_ptr<Table> table;
  std::vector<int64_t> in_hbm;
  std::vector<int64_t> below;
};

TEST(rows_of_lower_tiers_are_whole_and_those_of_the_gpu_say_why_they_are_not) {
  const TemporaryDirectory directory;
  Scene scene(directory / "rows");
  scene.lose();
  scene.check_rows(scene.below);
  check_throws(ErrorKind::kDamagedRows, kReason, [&] { scene.read(scene.in_hbm); });
  // Rows that are requested together with lost ones are still read.
  std::vector<int64_t> keys = {scene.in_hbm[0], scene.below[0]};
  std::vector<float> rows(2 * kDim);
  check_throws(ErrorKind::kDamagedRows, "the row of key " + std::to_string(keys[0]),
               [&] { scene.table->lookup(keys, rows.data(), LookUpPurpose::kTraining); });
  check(rows[kDim] == static_cast<float>(keys[1]), "a whole row wasn't read");
  check(scene.table->find_damaged() == scene.in_hbm, "other rows are damaged");
}

TEST(a_lost_gpu_is_reported_when_rows_move_and_changes_nothing) {
  const TemporaryDirectory directory;
  Scene scene(directory / "rows");
  scene.lose();
  check_throws(ErrorKind::kDamagedRows, kReason, [&] { scene.add(scene.in_hbm, 1.0f); });
  // Rows come up to be updated, and can't go down to the GPU.
  scene.add(scene.below, 0.5f);
  check_throws(ErrorKind::kDeviceLost, kReason, [&] { scene.table->drain(); });
  scene.check_rows(scene.below, 0.5f);
  std::vector<int64_t> many = keys_from(1000, 2000);
  check_throws(ErrorKind::kDeviceLost, kReason, [&] { scene.add(many, 1.0f); });
  scene.check_rows(scene.below, 0.5f);
  check(scene.table->row_count() == kKeys, "a batch that failed left rows");
}

TEST(rows_that_are_asked_for_ahead_stay_below_a_lost_gpu) {
  const TemporaryDirectory directory;
  Scene scene(directory / "rows");
  scene.lose();
  scene.table->prefetch(scene.below, scene.table->next_turn());
  check_throws(ErrorKind::kDeviceLost, kReason, [&] { scene.table->drain(); });
  std::vector<int32_t> tiers(scene.below.size());
  scene.table->lookup_tier(scene.below, tiers.data());
  check(std::count(tiers.begin(), tiers.end(), 0) == 0, "a row has left its tier");
  scene.check_rows(scene.below);
}

// Otherwise each row would be found damaged, one after the other.
TEST(rows_do_not_leave_a_lost_gpu_one_by_one) {
  const TemporaryDirectory directory;
  Scene scene(directory / "rows");
  Mover::Pause moves(*scene.table->parts().mover);
  std::vector<int64_t> new_keys = keys_from(kKeys, 30);
  scene.add(new_keys, 1.0f);
  check(moves.shrink_once(), "nothing went down to the GPU");
  scene.lose();
  check_throws(ErrorKind::kDeviceLost, kReason, [&] { moves.shrink_once(); });
}

TEST(a_save_that_leaves_lost_rows_out_has_all_others) {
  const TemporaryDirectory directory;
  Scene scene(directory / "rows");
  scene.lose();
  const std::string path = directory / "save";
  checkpoint::Writer file(path, RowLayout(kDim, /*slot_count=*/0), {});
  const SavedTable saved = scene.table->save(file, {}, /*waiting_keys=*/false, OnDamage::kSkip);
  file.finish();
  check(saved.skipped == scene.in_hbm, "other rows were left out");
  // A device is opened anew when nothing uses the lost one any more.
  const std::vector<int64_t> below = scene.below;
  scene.table.reset();
  scene.device.reset();
  Scene other(directory / "others");
  other.table->restore({}, {{path}}, saved.state, /*waiting_keys=*/false);
  check(other.table->row_count() == below.size(), "a restore lost or doubled a row");
  other.check_rows(below);
}

TEST(the_last_checkpoint_comes_back) {
  const TemporaryDirectory directory;
  const std::string path = directory / "rows";
  log::CheckpointId id;
  {
    Scene scene(path);
    scene.table->take_over_kept_rows(nullptr, log::draw_uuid());  // there are no kept rows
    scene.table->keep_rows();
    scene.table->close();
    scene.open(path);
    id = scene.table->kept_rows().back();
    scene.table->take_over_kept_rows(&id, log::draw_uuid());
    scene.check_rows(scene.all_keys());
    scene.add(scene.all_keys(), 1.0f);
    scene.table->drain();
    scene.lose();
    check_throws(ErrorKind::kDamagedRows, kReason, [&] { scene.table->close(); });
  }
  Table table(Scene::spec_without_gpu(path));
  table.take_over_kept_rows(&id, log::draw_uuid());
  std::vector<float> rows(kKeys * kDim);
  table.lookup(Scene::all_keys(), rows.data(), LookUpPurpose::kTraining);
  for (size_t i = 0; i < rows.size(); ++i) {
    check(rows[i] == static_cast<float>(i / kDim), "a row isn't what the checkpoint had");
  }
}

}  // namespace
}  // namespace embstore
