#include "testing/explorer/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "access/process_registry.h"
#include "gpu/buffers.h"
#include "gpu/emulated/draws.h"
#include "keep/checkpoint/reader.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/check.h"
#include "testing/explorer/explored_device.h"
#include "testing/explorer/history.h"
#include "testing/explorer/scheduler.h"
#include "testing/explorer/told_ids.h"
#include "testing/variable.h"
#include "tiers/hbm/hbm_tier.h"

namespace embstore::explorer {
namespace {

using gpu::emulated::Draws;

constexpr int kDim = 3;
constexpr size_t kRowBytes = 4 * sizeof(float);
constexpr int64_t kKeys = 12;
constexpr size_t kMostIds = 8;
constexpr size_t kMostOperations = 5;  // of a thread
constexpr size_t kStreams = 2;

// A row is worth how often it was updated, beyond what its key begins with: so each float says of which row it is, and when.
constexpr int64_t kMostUpdates = 1000;
float initial_value(int64_t key) { return static_cast<float>((key + 1) * kMostUpdates); }

std::vector<int64_t> all_keys() {
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), int64_t{0});
  return keys;
}

// Batches go over the bus in one piece, or in several.
TierSpec hbm(Draws& draws, uint64_t rows) {
  constexpr size_t kPieceBytes[] = {1, 200, HbmTier::kPieceBytes};
  TierSpec tier{"HBM", std::nullopt, rows * kRowBytes};
  tier.gpu.name = "emulated";
  tier.piece_bytes = kPieceBytes[draws.below(3)];
  return tier;
}

// With room for whatever a schedule's checkpoints keep.
TierSpec pool(const std::string& path) {
  constexpr uint64_t kPlaces = PoolTier::kHeadroomSlots + 1024;
  return {"PMEM_POOL", path, kPlaces * 256};
}

std::vector<TierSpec> some_tiers(Draws& draws, const std::string& path) {
  const uint64_t rows = 1 + draws.below(kKeys - 2);
  const uint64_t rows_of_dram = 1 + draws.below(3);
  TierSpec files{"SSDHASH", path, std::nullopt};
  files.ssd_hash.file_bytes = 32 << 10;
  files.ssd_hash.buffer_bytes = 128 << 10;
  switch (draws.below(8)) {
    case 0:
    case 1: return {hbm(draws, kKeys + 1)};
    case 2: return {hbm(draws, rows), {"DRAM", std::nullopt, rows_of_dram * kRowBytes}, files};
    case 3: return {hbm(draws, rows), {"DRAM", std::nullopt, rows_of_dram * kRowBytes}, pool(path)};
    default: return {hbm(draws, rows), {"DRAM", std::nullopt, 64 * kRowBytes}};
  }
}

TableSpec spec_of(Draws& draws, const std::string& path) {
  std::vector<float> defaults;
  for (int64_t key = 0; key < kKeys; ++key) defaults.insert(defaults.end(), kDim, initial_value(key));
  return {.name = "explored",
          .dim = kDim,
          .default_values = std::move(defaults),
          .optimizer = "SGD",
          .optimizer_params = {{"learning_rate", -1.0}},
          .tiers = some_tiers(draws, path),
          .cache_strategy = draws.one_in(2) ? CacheStrategy::kLfu : CacheStrategy::kLru};
}

// Nothing is lost where the computer doesn't fail.
class UnsafeCalls final : public files::FileCalls {
 public:
  int fdatasync(int) override { return 0; }
  int fsync(int) override { return 0; }
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed)
      : draws_(~seed),
        device_(std::make_shared<ExploredDevice>(seed)),
        // Whoever opens the emulated device from now on has this one.
        opened_(ProcessRegistry<std::string, gpu::Device>::get("emulated", [this] { return device_; })) {
    check(opened_ == device_, "another device is open");
    told_ids().clear();
    const size_t partitions = draws_.one_in(3) ? 2 : 1;
    table_ = std::make_unique<Variable>(partitions, [this](size_t number) {
      specs_.push_back(spec_of(draws_, directory_ / ("rows" + std::to_string(number))));
      return std::make_unique<Table>(specs_.back());
    });
    for (size_t i = 0; i < kStreams; ++i) streams_.push_back(std::make_unique<gpu::OwnedStream>(*device_));
  }

  void run() {
    draw_kinds();
    train_first();
    const size_t threads = 2 + draws_.below(3);
    closes_ = draws_.one_in(8);
    std::deque<Worker> workers;
    for (size_t i = 0; i < threads; ++i) workers.emplace_back(*this, draws_.next(), closes_ && i == 0);
    {
      std::vector<std::jthread> running;
      for (Worker& worker : workers) running.emplace_back([&worker] { worker.run(); });
    }
    if (!closes_) look_at_the_end();
    for (const auto& stream : streams_) device_->synchronise(gpu::Stream(*stream));
    workers.clear();
    table_.reset();
    look_at_checkpoints();
    // What is still on streams runs now, on what the table has freed, if it was on its way.
    const gpu::OwnedEvent event(*device_);
    for (int i = 0; i < 300; ++i) static_cast<void>(device_->EmulatedDevice::query(event));
    static_cast<void>(device_->memory());
    if (const auto wrong = history_.contradiction(all_keys())) fail(*wrong);
  }
  bool has_checkpoints() const { return !persisted_.empty(); }

 private:
  enum class Does : uint8_t {
    kTrain,
    kTrainOnStream,
    kLookUpOnStream,
    kServeOnStream,
    kLookUp,
    kServe,
    kAskAhead,
    kDrain,
    kSynchronise,
    kSee,
    kExport,
    kDrop,
    kSave,
    kRestore,
    kPersist,
    kCount
  };
  // Each schedule leaves some kinds of operations out, and has others often: many of one kind meet seldom where all occur.
  void draw_kinds() {
    for (size_t kind = 0; kind < static_cast<size_t>(Does::kCount); ++kind) {
      const bool is_always_there = kind <= static_cast<size_t>(Does::kLookUpOnStream);
      constexpr size_t kTimes[] = {0, 0, 1, 4};
      const size_t times = is_always_there ? 4 : kTimes[draws_.below(std::size(kTimes))];
      kinds_.insert(kinds_.end(), times, static_cast<Does>(kind));
    }
  }
  Does some_kind(Draws& draws) const { return kinds_[draws.below(kinds_.size())]; }

  // Operations of one thread.
  class Worker {
   public:
    Worker(Schedule& schedule, uint64_t seed, bool closes)
        : schedule_(schedule),
          table_(*schedule.table_),
          draws_(seed),
          closes_(closes),
          aside_(*schedule.device_) {
      for (size_t left = 2 + draws_.below(kMostOperations - 1); left != 0; --left)
        look_ups_.emplace_back(schedule_);
    }

    void run() {
      const size_t operations = look_ups_.size();
      try {
        for (size_t i = 0; i < operations; ++i) {
          if (closes_ && i == operations / 2) {
            at("close");
            table_.close();
          }
          some_operation(/*may_save=*/true);
          if (draws_.one_in(3)) collect();
        }
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kClosed) fail(std::string("an error: ") + error.what());
      } catch (const std::exception& error) {
        fail(std::string("an exception: ") + error.what());
      }
      while (collected_ != put_) collect();
      at("its end");
    }

    // What a look-up on a stream needs, and gave; or an apply, whose gradients take the place of rows; or ids alone.
    struct OnDevice {
      explicit OnDevice(const Schedule& schedule)
          : ids(*schedule.device_, kMostIds),
            out(*schedule.device_, kMostIds * kDim),
            ids_on_host(*schedule.device_, kMostIds),
            rows(*schedule.device_, kMostIds * kDim),
            is_done(*schedule.device_) {}
      bool is_look_up() const { return !reads.empty(); }

      gpu::DeviceArray<int64_t> ids;
      gpu::DeviceArray<float> out;
      gpu::PinnedArray<int64_t> ids_on_host;
      gpu::PinnedArray<float> rows;
      gpu::OwnedEvent is_done;
      std::vector<int64_t> of;
      std::vector<size_t> reads;    // in the history
      std::optional<size_t> apply;  // likewise, if it is one
    };

   private:
    void at(const std::string& what) { Scheduler::instance().now_at(what); }

    // `may_save`: no save of this thread is under way, for which removals wait.
    void some_operation(bool may_save) {
      const Does does = schedule_.some_kind(draws_);
      switch (does) {
        case Does::kTrain: return train(may_save);
        case Does::kTrainOnStream: return train_on_device();
        case Does::kLookUpOnStream: return look_up_on_device(/*train=*/true);
        case Does::kServeOnStream: return look_up_on_device(/*train=*/false);
        case Does::kLookUp: return look_up_on_the_host(/*train=*/true);
        case Does::kServe: return look_up_on_the_host(/*train=*/false);
        case Does::kAskAhead: return ask_ahead();
        case Does::kDrain: at("drain"); return table_.drain();
        case Does::kSynchronise: return synchronise();
        case Does::kSee: return see();
        case Does::kExport: return export_rows();
        case Does::kDrop: return may_save ? drop() : synchronise();
        case Does::kSave: return may_save ? save() : train(may_save);
        case Does::kRestore: return may_save ? restore() : train(may_save);
        case Does::kPersist: return persist(may_save);
        case Does::kCount: return;
      }
    }

    std::vector<int64_t> some_ids() { return schedule_.some_ids(draws_); }

    void train(bool may_pause) {
      at("apply");
      const std::vector<int64_t> ids = some_ids();
      const std::vector<float> gradients(ids.size() * kDim, 1.0f);
      const int64_t step = schedule_.next_step_++;
      const size_t number = schedule_.begin_apply(ids, step);
      try {
        if (may_pause && draws_.one_in(4)) {
          const auto prepared = table_.prepare_apply(ids, gradients.data());
          if (draws_.one_in(2)) look_up_on_device(draws_.one_in(2));
          if (draws_.one_in(4)) ask_ahead();
          at("commit");
          prepared->commit(step);
        } else {
          table_.apply_gradients(ids, gradients.data(), step);
        }
      } catch (...) {
        schedule_.history_.refused(number);
        throw;
      }
      schedule_.history_.end(number);
    }

    void look_up_on_the_host(bool train) {
      at(train ? "look-up for training" : "look-up");
      const std::vector<int64_t> ids = some_ids();
      std::vector<float> rows(ids.size() * kDim);
      const std::vector<size_t> reads =
          schedule_.begin_reads(ids, train ? "look-up for training" : "look-up");
      table_.lookup(ids, rows.data(), train);
      schedule_.looked_up_ += ids.size();
      schedule_.end_reads(reads, ids, rows.data());
    }

    void look_up_on_device(bool train) {
      if (put_ == look_ups_.size()) return;
      at("look-up on a stream");
      OnDevice& look_up = look_ups_[put_];
      const gpu::Stream stream = *schedule_.streams_[draws_.below(kStreams)];
      look_up.of = some_ids();
      std::copy(look_up.of.begin(), look_up.of.end(), look_up.ids_on_host.data());
      look_up.ids.copy_from(look_up.ids_on_host.data(), look_up.of.size(), stream);
      look_up.reads = schedule_.begin_reads(look_up.of, train ? "look-up on a stream" : "served on a stream");
      const auto count = static_cast<uint32_t>(look_up.of.size());
      table_.lookup_on_device({look_up.ids.address(), count, stream}, look_up.out.address(), train);
      // Whatever comes later is in order with it: it sees nothing of that.
      for (const size_t number : look_up.reads) schedule_.history_.end(number);
      schedule_.looked_up_ += count;
      look_up.out.copy_to(look_up.rows.data(), size_t{count} * kDim, stream);
      schedule_.device_->record(look_up.is_done, stream);
      ++put_;
    }
    void train_on_device() {
      if (put_ == look_ups_.size()) return;
      at("apply on a stream");
      OnDevice& step = look_ups_[put_];
      const gpu::Stream stream = *schedule_.streams_[draws_.below(kStreams)];
      step.of = some_ids();
      std::copy(step.of.begin(), step.of.end(), step.ids_on_host.data());
      step.ids.copy_from(step.ids_on_host.data(), step.of.size(), stream);
      std::fill_n(step.rows.data(), step.of.size() * kDim, 1.0f);
      step.out.copy_from(step.rows.data(), step.of.size() * kDim, stream);
      const int64_t version = schedule_.next_step_++;
      step.apply = schedule_.begin_apply(step.of, version);
      try {
        table_.apply_on_device({step.ids.address(), static_cast<uint32_t>(step.of.size()), stream},
                               step.out.address(), version);
      } catch (...) {
        schedule_.history_.refused(*step.apply);
        throw;
      }
      schedule_.history_.end(*step.apply);  // whatever comes later sees it
      schedule_.device_->record(step.is_done, stream);
      ++put_;
    }
    // Of a batch that may come or not.
    void ask_ahead() {
      at("what is asked for ahead");
      if (draws_.one_in(8)) return table_.forget_prefetched();
      const Variable::Turns turns = table_.next_turn();
      if (put_ == look_ups_.size() || draws_.one_in(3)) {
        const std::vector<int64_t> ids = some_ids();
        table_.prefetch(ids, turns);
        schedule_.note_asked(ids, turns);
        return;
      }
      OnDevice& asked = look_ups_[put_];
      const gpu::Stream stream = *schedule_.streams_[draws_.below(kStreams)];
      asked.of = some_ids();
      std::copy(asked.of.begin(), asked.of.end(), asked.ids_on_host.data());
      asked.ids.copy_from(asked.ids_on_host.data(), asked.of.size(), stream);
      table_.prefetch_on_device({asked.ids.address(), static_cast<uint32_t>(asked.of.size()), stream}, turns);
      schedule_.note_asked(asked.of, turns);
      schedule_.device_->record(asked.is_done, stream);
      ++put_;
    }
    void collect() {
      if (collected_ == put_) return;
      at("what a stream gave");
      const OnDevice& step = look_ups_[collected_++];
      schedule_.device_->synchronise(gpu::Event(step.is_done));
      if (step.is_look_up()) schedule_.saw_reads(step.reads, step.of, step.rows.data());
    }

    // What this thread had put on streams is done, so that another stream may read what it gave.
    void synchronise() {
      at("synchronise");
      table_.synchronise();
      for (; collected_ != put_; ++collected_) {
        const OnDevice& look_up = look_ups_[collected_];
        std::vector<float> rows(look_up.of.size() * kDim);
        look_up.out.copy_to(rows.data(), rows.size(), aside_);
        if (look_up.is_look_up()) schedule_.saw_reads(look_up.reads, look_up.of, rows.data());
      }
    }

    void drop() {
      at("drop");
      const auto key = static_cast<int64_t>(draws_.below(kKeys));
      const size_t number =
          schedule_.history_.begin({.rows = {{key, {}}}, .kind = Operation::Kind::kDrop, .name = "drop"});
      uint64_t dropped = 0;
      try {
        dropped = table_.drop({&key, 1});
      } catch (...) {
        schedule_.history_.refused(number);
        throw;
      }
      schedule_.history_.at(number).rows[key].count = static_cast<int64_t>(dropped);
      schedule_.history_.end(number);
    }

    void see() {
      at("frequencies");
      const std::vector<int64_t> keys = all_keys();
      std::vector<int64_t> frequencies(keys.size());
      const size_t number =
          schedule_.history_.begin({.rows = {}, .kind = Operation::Kind::kRead, .name = "frequencies"});
      table_.frequencies(keys, frequencies.data());
      for (const int64_t key : keys)
        schedule_.history_.at(number).rows[key].count = frequencies[static_cast<size_t>(key)];
      schedule_.history_.end(number);
      std::vector<int64_t> versions(keys.size());
      const size_t later =
          schedule_.history_.begin({.rows = {}, .kind = Operation::Kind::kReadVersions, .name = "versions"});
      table_.versions(keys, versions.data());
      for (const int64_t key : keys) {
        schedule_.history_.at(later).rows[key].version = versions[static_cast<size_t>(key)];
      }
      schedule_.history_.end(later);
    }

    void export_rows() {
      at("export");
      const size_t number =
          schedule_.history_.begin({.rows = {}, .kind = Operation::Kind::kMoment, .name = "export"});
      try {
        schedule_.saw_rows(number, table_.export_rows());
      } catch (...) {
        schedule_.history_.refused(number);
        throw;
      }
      schedule_.history_.end(number);
    }

    void save() {
      at("save");
      std::optional<MutexLock> checkpoint;
      if (table_.partitions() > 1) checkpoint.emplace(schedule_.checkpoints_);
      const std::string path = schedule_.directory_ / ("save" + std::to_string(schedule_.saves_++));
      UnsafeCalls calls;
      EvictionRule eviction;
      if (draws_.one_in(3))
        eviction.least_version =
            static_cast<int64_t>(draws_.below(static_cast<uint64_t>(schedule_.next_step_) + 1));
      std::deque<checkpoint::Writer> files;
      std::vector<std::unique_ptr<TableSave>> saves;
      std::vector<std::string> paths;
      for (size_t p = 0; p < table_.partitions(); ++p) {
        checkpoint::FileIdentity identity{};
        identity.partition = static_cast<uint32_t>(p);
        identity.partition_count = static_cast<uint32_t>(table_.partitions());
        paths.push_back(path + "." + std::to_string(p));
        files.emplace_back(paths.back(), table_.parts().layout, identity, calls);
        saves.push_back(table_.partition(p).prepare_save(files.back(), eviction));
      }
      if (draws_.one_in(3)) some_operation(/*may_save=*/false);
      at("save, its moment");
      const size_t number = schedule_.history_.begin({.rows = {},
                                                      .kind = Operation::Kind::kSave,
                                                      .name = "save",
                                                      .least_version = eviction.least_version.value_or(-1)});
      {
        std::optional<MutexLock> lock;
        if (saves.size() > 1) lock.emplace(table_.whole_batches());
        for (const auto& save : saves) save->begin(/*waiting_keys=*/false);
      }
      schedule_.history_.end(number);
      try {
        for (uint64_t left = draws_.below(3); left != 0; --left) some_operation(/*may_save=*/false);
      } catch (...) {
        schedule_.history_.given_up(number);
        throw;
      }
      at("save, its rows");
      std::vector<TableState> states;
      for (size_t p = 0; p < saves.size(); ++p) {
        const SavedTable saved = saves[p]->write(OnDamage::kRaise);
        check(saved.skipped.empty(), "rows weren't saved");
        files[p].finish();
        schedule_.saw_rows(number, paths[p]);
        states.push_back(saved.state);
      }
      schedule_.saved_.push_back({paths, schedule_.history_.at(number).rows, states});
    }

    void drop_a_checkpoint() {
      constexpr size_t kMostKept = 8;
      if (schedule_.persisted_.size() < kMostKept) return;
      const auto oldest = schedule_.persisted_.begin();
      table_.partition(0).drop_persisted(oldest->first);
      schedule_.history_.refused(oldest->second.moment);
      schedule_.persisted_.erase(oldest);
    }

    // By one thread at a time, as a program does it.
    void persist(bool may_save) {
      if (!schedule_.has_pool() || std::exchange(schedule_.is_persisting_, true)) return train(may_save);
      drop_a_checkpoint();
      at("checkpoint, its moment");
      const std::string path = schedule_.directory_ / ("state" + std::to_string(schedule_.saves_++));
      checkpoint::FileIdentity identity{};
      identity.partition_count = 1;
      UnsafeCalls calls;
      checkpoint::Writer file(path, table_.parts().layout, identity, calls);
      History& history = schedule_.history_;
      const size_t number =
          history.begin({.rows = {}, .kind = Operation::Kind::kMoment, .name = "checkpoint"});
      try {
        const BegunCheckpoint begun = table_.partition(0).begin_persist(file, /*waiting_keys=*/false);
        history.end(number);
        file.finish();
        for (uint64_t left = draws_.below(3); left != 0; --left) some_operation(may_save);
        at("checkpoint, its rows");
        if (draws_.one_in(4)) {
          table_.partition(0).drop_persisted(begun.number);
          history.refused(number);
        } else {
          table_.partition(0).finish_persist(begun.number, log::CheckpointId{});
          schedule_.persisted_[begun.number] = {path, number, begun.state};
        }
      } catch (...) {
        history.refused(number);
        throw;
      }
      schedule_.is_persisting_ = false;
    }

    // Look-ups go on meanwhile, and see rows go and come.
    void restore() {
      if (schedule_.saved_.empty()) return;
      at("restore");
      std::optional<MutexLock> checkpoint;
      if (table_.partitions() > 1) checkpoint.emplace(schedule_.checkpoints_);
      const Saved saved = schedule_.saved_[draws_.below(schedule_.saved_.size())];
      History& history = schedule_.history_;
      const size_t clear =
          history.begin({.rows = {}, .kind = Operation::Kind::kClear, .name = "restore, which clears"});
      const size_t fill = history.begin(
          {.rows = saved.rows, .kind = Operation::Kind::kFill, .name = "restore", .after = clear});
      try {
        std::optional<MutexLock> lock;
        if (table_.partitions() > 1) lock.emplace(table_.whole_batches());
        for (size_t p = 0; p < table_.partitions(); ++p) {
          table_.partition(p).restore({.number = p, .count = table_.partitions()}, {saved.paths},
                                      saved.states[p], /*waiting_keys=*/false);
        }
      } catch (...) {
        history.refused(clear);
        history.refused(fill);
        throw;
      }
      history.end(clear);
      history.end(fill);
    }

    Schedule& schedule_;
    Variable& table_;
    Draws draws_;
    const bool closes_;
    const gpu::OwnedStream aside_;
    std::deque<OnDevice> look_ups_;
    size_t put_ = 0;        // of them, on streams
    size_t collected_ = 0;  // of those, that have come back
  };

  struct Saved {
    std::vector<std::string> paths;  // of each partition
    std::map<int64_t, RowState> rows;
    std::vector<TableState> states;
  };

  struct Persisted {
    std::string path;
    size_t moment;  // in the history
    TableState state;
  };

  // Of a table of one partition alone.
  bool has_pool() const { return specs_.size() == 1 && specs_.front().tiers.back().kind == "PMEM_POOL"; }

  std::vector<int64_t> some_ids(Draws& draws) const {
    std::vector<int64_t> ids(1 + draws.below(kMostIds));
    for (int64_t& id : ids) id = static_cast<int64_t>(draws.below(kKeys));
    return ids;
  }

  void note_asked(const std::vector<int64_t>& ids, const Variable::Turns& turns) {
    for (size_t p = 0; p < turns.size(); ++p) {
      std::vector<int64_t> own;
      for (const int64_t id : ids) {
        if (table_->part(p).has(id)) own.push_back(id);
      }
      if (!own.empty()) asked_for_[{table_->partition(p).parts().mover.get(), turns[p]}] = own;
    }
  }

  void train_first() {
    const std::vector<float> gradients(kMostIds * kDim, 1.0f);
    for (uint64_t left = draws_.below(4); left != 0; --left) {
      const std::vector<int64_t> ids = some_ids(draws_);
      const size_t number = begin_apply(ids, next_step_);
      table_->apply_gradients(ids, gradients.data(), next_step_++);
      history_.end(number);
    }
    if (draws_.one_in(2)) table_->drain();
  }

  size_t begin_apply(const std::vector<int64_t>& ids, int64_t step) {
    Operation apply{.rows = {}, .kind = Operation::Kind::kApply, .name = "apply"};
    for (const int64_t id : ids) {
      ++apply.rows[id].count;
      apply.rows[id].version = step;
    }
    return history_.begin(std::move(apply));
  }

  // A key that occurs twice may be seen between two updates, and is two reads.
  std::vector<size_t> begin_reads(const std::vector<int64_t>& ids, const std::string& name) {
    std::array<size_t, kKeys> occurrences{};
    size_t most = 0;
    for (const int64_t id : ids) most = std::max(most, ++occurrences[static_cast<size_t>(id)]);
    std::vector<size_t> numbers(most);
    for (size_t& number : numbers)
      number = history_.begin({.rows = {}, .kind = Operation::Kind::kRead, .name = name});
    return numbers;
  }
  void saw_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids, const float* rows) {
    std::array<size_t, kKeys> occurrences{};
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t number = numbers[occurrences[static_cast<size_t>(ids[i])]++];
      history_.at(number).rows[ids[i]].count = updates_of(ids[i], rows + i * kDim);
    }
  }
  void end_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids, const float* rows) {
    saw_reads(numbers, ids, rows);
    for (const size_t number : numbers) history_.end(number);
  }

  int64_t updates_of(int64_t key, const float* row) const {
    const float updates = row[0] - initial_value(key);
    Scheduler::instance().note(
        static_cast<uint64_t>(static_cast<int64_t>(std::isfinite(updates) ? updates : -1)));
    bool is_whole =
        std::isfinite(updates) && updates >= 0 && updates < kMostUpdates && updates == std::floor(updates);
    for (int d = 1; d < kDim; ++d) is_whole = is_whole && row[d] == row[0];
    if (!is_whole) {
      std::string text = "the row of key " + std::to_string(key) + " is none that it had:";
      for (int d = 0; d < kDim; ++d) text += " " + std::to_string(row[d]);
      fail(text + "\n" + history_.described(key));
    }
    return static_cast<int64_t>(updates);
  }

  void saw_rows(size_t number, const ExportedRows& rows) {
    for (size_t i = 0; i < rows.keys.size(); ++i)
      saw_row(number, rows.keys[i], rows.frequencies[i], rows.versions[i], rows.values.data() + i * kDim);
  }
  void saw_rows(size_t number, const std::string& path) {
    checkpoint::Reader reader(path);
    while (const std::optional<checkpoint::Reader::Block> block = reader.next()) {
      if (block->kind != checkpoint::kRows) continue;
      for (size_t at = 0; at < block->payload.size(); at += reader.header().record_bytes) {
        checkpoint::RowRecord row;
        std::memcpy(&row, block->payload.data() + at, sizeof(row));
        float floats[kDim];
        std::memcpy(floats, block->payload.data() + at + sizeof(row), sizeof(floats));
        saw_row(number, row.key, static_cast<int64_t>(row.frequency), row.version, floats);
      }
    }
  }
  void saw_row(size_t number, int64_t key, int64_t frequency, int64_t version, const float* floats) {
    const std::string& name = history_.at(number).name;
    check(key >= 0 && key < kKeys, name + " has a key that nobody trained");
    const int64_t updates = updates_of(key, floats);
    if (frequency != updates) fail(name + " has key " + std::to_string(key) + " with another frequency");
    check(history_.at(number).rows.try_emplace(key, RowState{updates, version}).second,
          name + " has a row twice");
  }

  // When all threads have ended.
  void look_at_the_end() {
    Scheduler::instance().now_at("the end");
    table_->drain();
    // Where the engine is compiled as a few files, the explorer sees no calls between them.
    check(kUnderSanitizer || told_ids() == asked_for_, "others are brought up than were asked for");
    const std::vector<int64_t> keys = all_keys();
    std::vector<float> rows(keys.size() * kDim);
    std::vector<int64_t> frequencies(keys.size());
    std::vector<int64_t> versions(keys.size());
    std::vector<int32_t> levels(keys.size());
    table_->lookup_tier(keys, levels.data());
    table_->frequencies(keys, frequencies.data());
    table_->versions(keys, versions.data());
    const size_t end = history_.begin({.rows = {}, .kind = Operation::Kind::kReadAll, .name = "the end"});
    const TableStats stats = table_->stats();
    check(stats.background_error.empty(), "a move failed: " + stats.background_error);
    check(stats.hits + stats.misses == looked_up_, "look-ups are counted otherwise");
    for (const TableStats::Level& level : stats.tiers) {
      check(level.rows <= level.capacity_rows, "a tier has more rows than its capacity");
    }
    // First on the device, whose mirror nobody has had brought up to date.
    const gpu::Stream stream = *streams_[0];
    gpu::DeviceArray<int64_t> ids(*device_, keys.size());
    gpu::DeviceArray<float> out(*device_, rows.size());
    ids.copy_from(keys.data(), keys.size(), stream);
    table_->lookup_on_device({ids.address(), static_cast<uint32_t>(kKeys), stream}, out.address(),
                             /*train=*/true);
    out.copy_to(rows.data(), rows.size(), stream);
    for (const int64_t key : keys) {
      const auto i = static_cast<size_t>(key);
      const int64_t updates = updates_of(key, rows.data() + i * kDim);
      history_.at(end).rows[key] = {updates, versions[i]};
      check(frequencies[i] == updates, "key " + std::to_string(key) + " has another frequency");
      check((levels[i] >= 0) == (updates != 0), "key " + std::to_string(key) + " has a row, or none");
    }
    history_.end(end);
    const size_t on_host =
        history_.begin({.rows = {}, .kind = Operation::Kind::kRead, .name = "the end on the host"});
    table_->lookup(keys, rows.data(), /*train=*/true);
    end_reads({on_host}, keys, rows.data());
    const size_t moment =
        history_.begin({.rows = {}, .kind = Operation::Kind::kMoment, .name = "the end, exported"});
    saw_rows(moment, table_->export_rows());
    history_.end(moment);
    for (const Table* table : table_->all()) check_ranks(*table);
    for (Table* table : table_->all()) {
      uint32_t refused = 1;
      device_->copy_to_host(&refused, table->parts().store->tiers().hbm()->mirror().refused().address,
                            sizeof(refused), stream);
      check(refused == 0, "the mirror was told of keys that it had, or of too many");
    }
  }

  // The next process has no GPU.
  void look_at_checkpoints() {
    if (persisted_.empty()) return;
    Scheduler::instance().now_at("the next process");
    TableSpec spec = specs_.front();
    spec.tiers.erase(spec.tiers.begin());
    Table table(spec);
    check(table.persisted().size() == persisted_.size(), "checkpoints were lost");
    for (auto at = persisted_.rbegin(); at != persisted_.rend(); ++at) {
      const auto& [number, checkpoint] = *at;
      table.restore_persisted(number, {.number = 0, .count = 1}, {{checkpoint.path}}, checkpoint.state,
                              /*waiting_keys=*/false);
      saw_rows(checkpoint.moment, table.export_rows());
    }
  }

  // What the host knows of ranks may lag, but never be higher.
  static void check_ranks(const Table& table) {
    const HbmTier& hbm = *table.parts().store->tiers().hbm();
    RowBatch row(table.parts().layout);
    for (Slot slot = 0; slot < hbm.untouched_from(); ++slot) {
      if (!hbm.ranks().is_filled(slot)) continue;
      const Place place{hbm.key(slot), slot};
      hbm.read({&place, 1}, row);
      const RowHeader& header = row.header(0);
      const Rank known = hbm.ranks().rank(slot, CacheStrategy::kLfu);
      check(known.count <= header.frequency + header.served && known.stamp <= header.stamp,
            "a row is known to rank higher than it does");
    }
  }

  Draws draws_;
  TemporaryDirectory directory_;
  const std::shared_ptr<ExploredDevice> device_;
  const std::shared_ptr<gpu::Device> opened_;
  std::vector<TableSpec> specs_;  // of each partition
  std::unique_ptr<Variable> table_;
  std::vector<std::unique_ptr<gpu::OwnedStream>> streams_;
  History history_;
  std::vector<Does> kinds_;  // that are drawn from, each as often as it is here
  int64_t next_step_ = 1;
  Mutex checkpoints_;  // held over a save or a restore of several partitions
  uint64_t saves_ = 0;
  std::vector<Saved> saved_;  // those that are whole
  bool is_persisting_ = false;
  std::map<uint64_t, Persisted> persisted_;  // by the number of the checkpoint
  uint64_t looked_up_ = 0;
  ToldIds asked_for_;
  bool closes_ = false;
};

}  // namespace

std::string replay(uint64_t seed) { return "interleavings_test --seed " + std::to_string(seed) + " --print"; }

Explored explore(uint64_t seed) {
  tested_case() = "seed " + std::to_string(seed) + " (" + replay(seed) + ")";
  Scheduler& scheduler = Scheduler::instance();
  scheduler.fail = [](const std::string& what) { fail(what); };
  scheduler.begin(seed);
  bool has_checkpoints = false;
  try {
    Schedule schedule(seed);
    schedule.run();
    has_checkpoints = schedule.has_checkpoints();
    scheduler.now_at("the table's end");
  } catch (const std::exception& error) {
    fail(std::string("an exception: ") + error.what());
  }
  const uint64_t trace = scheduler.end();
  return {.trace = trace, .points = scheduler.points(), .has_checkpoints = has_checkpoints};
}

}  // namespace embstore::explorer
