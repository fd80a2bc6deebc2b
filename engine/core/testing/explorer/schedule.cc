#include "testing/explorer/schedule.h"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "access/process_registry.h"
#include "gpu/buffers.h"
#include "gpu/emulated/draws.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/check.h"
#include "testing/explorer/explored_device.h"
#include "testing/explorer/explored_variable.h"
#include "testing/explorer/history.h"
#include "testing/explorer/prefetched_ids.h"
#include "testing/explorer/scheduler.h"
#include "testing/watched_calls.h"

namespace embstore::explorer {
namespace {

using gpu::emulated::Draws;

constexpr size_t kMaxOperationsOfAThread = 5;
constexpr size_t kStreams = 2;

class Schedule {
 public:
  explicit Schedule(uint64_t seed)
      : draws_(~seed),
        device_(std::make_shared<ExploredDevice>(seed)),
        // From now on the tables that open the emulated device get this one.
        opened_(ProcessRegistry<std::string, gpu::Device>::get("emulated", [this] { return device_; })) {
    check(opened_ == device_, "another device is open");
    prefetched_ids().clear();
    const size_t variables = draws_.one_in(3) ? 2 : 1;
    while (variables_.size() < variables) {
      variables_.emplace_back(draws_, *device_, directory_ / ("rows" + std::to_string(variables_.size())));
    }
    for (size_t i = 0; i < kStreams; ++i) streams_.push_back(std::make_unique<gpu::OwnedStream>(*device_));
  }

  void run() {
    draw_kinds();
    for (ExploredVariable& variable : variables_) variable.train_first(draws_);
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
    for (ExploredVariable& variable : variables_) {
      variable.table.reset();
      variable.look_at_checkpoints();
    }
    // Work that is still on streams runs now, on memory that the tables have freed, so that a missing wait is
    // detected.
    const gpu::OwnedEvent event(*device_);
    for (int i = 0; i < 300; ++i) static_cast<void>(device_->EmulatedDevice::query(event));
    static_cast<void>(device_->memory());
    for (const ExploredVariable& variable : variables_) {
      if (const auto wrong = variable.history.contradiction(ExploredVariable::all_keys())) fail(*wrong);
    }
  }
  bool has_checkpoints(size_t min_partitions) const {
    return std::any_of(variables_.begin(), variables_.end(), [&](const ExploredVariable& variable) {
      return !variable.persisted.empty() && variable.partitions() >= min_partitions;
    });
  }
  bool has_steps_of_variables() const { return has_steps_of_variables_; }

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
  // Each schedule leaves out some kinds of operations and draws others often: if all kinds occurred,
  // operations of one kind would seldom meet.
  void draw_kinds() {
    for (size_t kind = 0; kind < static_cast<size_t>(Does::kCount); ++kind) {
      const bool is_always_there = kind <= static_cast<size_t>(Does::kLookUpOnStream);
      constexpr size_t kTimes[] = {0, 0, 1, 4};
      const size_t times = is_always_there ? 4 : kTimes[draws_.below(std::size(kTimes))];
      kinds_.insert(kinds_.end(), times, static_cast<Does>(kind));
    }
  }
  Does some_kind(Draws& draws) const { return kinds_[draws.below(kinds_.size())]; }

  // The operations of one thread.
  class Worker {
   public:
    Worker(Schedule& schedule, uint64_t seed, bool closes)
        : schedule_(schedule), draws_(seed), closes_(closes), aside_(*schedule.device_) {
      for (size_t left = 2 + draws_.below(kMaxOperationsOfAThread - 1); left != 0; --left)
        steps_.emplace_back(schedule_);
    }

    void run() {
      const size_t operations = steps_.size();
      try {
        for (size_t i = 0; i < operations; ++i) {
          if (closes_ && i == operations / 2) {
            at("close");
            for (ExploredVariable& variable : schedule_.variables_) variable.table->close();
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

    // One variable's part of a step on a stream: the ids and results of a look-up; or an apply, with its
    // gradients in place of rows; or ids only.
    struct OnDevice {
      explicit OnDevice(const Schedule& schedule)
          : ids(*schedule.device_, kMaxIds),
            out(*schedule.device_, kMaxIds * kDim),
            ids_on_host(*schedule.device_, kMaxIds),
            rows(*schedule.device_, kMaxIds * kDim),
            is_done(*schedule.device_) {}
      void put_ids(ExploredVariable& of_variable, const std::vector<int64_t>& some, gpu::Stream on_stream) {
        on = &of_variable;
        stream = on_stream;
        of = some;
        std::copy(of.begin(), of.end(), ids_on_host.data());
        ids.copy_from(ids_on_host.data(), of.size(), stream);
      }
      bool is_look_up() const { return !reads.empty(); }
      IdsOnDevice on_device() const { return {ids.address(), static_cast<uint32_t>(of.size()), stream}; }

      ExploredVariable* on = nullptr;
      gpu::DeviceArray<int64_t> ids;
      gpu::DeviceArray<float> out;
      gpu::PinnedArray<int64_t> ids_on_host;
      gpu::PinnedArray<float> rows;
      gpu::OwnedEvent is_done;
      gpu::Stream stream;
      std::vector<int64_t> of;
      std::vector<size_t> reads;    // in the history
      std::optional<size_t> apply;  // in the history, for an apply
    };

   private:
    void at(const std::string& what) { Scheduler::instance().now_at(what); }

    ExploredVariable& some_variable() {
      return schedule_.variables_[draws_.below(schedule_.variables_.size())];
    }

    // `may_save`: this thread has no save under way, for which removals wait.
    void some_operation(bool may_save) {
      const Does does = schedule_.some_kind(draws_);
      ExploredVariable& on = some_variable();
      switch (does) {
        case Does::kTrain: return train(on, may_save);
        case Does::kTrainOnStream: return train_on_device();
        case Does::kLookUpOnStream: return look_up_on_device(LookUpPurpose::kTraining);
        case Does::kServeOnStream: return look_up_on_device(LookUpPurpose::kServing);
        case Does::kLookUp: return look_up_on_the_host(on, LookUpPurpose::kTraining);
        case Does::kServe: return look_up_on_the_host(on, LookUpPurpose::kServing);
        case Does::kAskAhead: return ask_ahead(on);
        case Does::kDrain: at("drain"); return on.table->drain();
        case Does::kSynchronise: return synchronise();
        case Does::kSee: return see(on);
        case Does::kExport: return export_rows(on);
        case Does::kDrop: return may_save ? drop(on) : synchronise();
        case Does::kSave: return may_save ? save(on) : train(on, may_save);
        case Does::kRestore: return may_save ? restore(on) : train(on, may_save);
        case Does::kPersist: return persist(on, may_save);
        case Does::kCount: return;
      }
    }

    void train(ExploredVariable& on, bool may_pause) {
      at("apply");
      const std::vector<int64_t> ids = ExploredVariable::some_ids(draws_);
      const std::vector<float> gradients(ids.size() * kDim, 1.0f);
      const int64_t step = on.next_step++;
      const size_t number = on.begin_apply(ids, step);
      on.history.within(number, [&] {
        if (!may_pause || !draws_.one_in(4)) return on.table->apply_gradients(ids, gradients.data(), step);
        const auto prepared = on.table->prepare_apply(ids, gradients.data());
        if (draws_.one_in(2))
          look_up_on_device(draws_.one_in(2) ? LookUpPurpose::kTraining : LookUpPurpose::kServing, &on);
        if (draws_.one_in(4)) ask_ahead(on);
        at("commit");
        prepared->commit(step);
      });
      on.history.end(number);
    }

    void look_up_on_the_host(ExploredVariable& on, LookUpPurpose purpose) {
      const std::string name = purpose == LookUpPurpose::kTraining ? "look-up for training" : "look-up";
      at(name);
      const std::vector<int64_t> ids = ExploredVariable::some_ids(draws_);
      std::vector<float> rows(ids.size() * kDim);
      const std::vector<size_t> reads = on.begin_reads(ids, name);
      on.table->lookup(ids, rows.data(), purpose);
      on.looked_up += ids.size();
      on.end_reads(reads, ids, rows.data());
    }

    // Draws ids for a step on a stream, of one variable, or of all from `first` on. Returns nothing if the
    // thread has as many steps as it may.
    std::vector<OnDevice*> begin_step(ExploredVariable* first = nullptr) {
      std::vector<ExploredVariable*> on;
      for (ExploredVariable& variable : schedule_.variables_) {
        if (first == nullptr || first == &variable || !on.empty()) on.push_back(&variable);
      }
      if (on.size() > steps_.size() - put_ || draws_.one_in(2)) on = {on[draws_.below(on.size())]};
      if (put_ == steps_.size()) return {};
      const gpu::Stream stream = *schedule_.streams_[draws_.below(kStreams)];
      std::vector<OnDevice*> parts;
      for (ExploredVariable* variable : on) {
        OnDevice& part = steps_[put_ + parts.size()];
        parts.push_back(&part);
        part.put_ids(*variable, ExploredVariable::some_ids(draws_), stream);
      }
      return parts;
    }
    void end_step(const std::vector<OnDevice*>& parts) {
      for (const OnDevice* part : parts) schedule_.device_->record(part->is_done, part->stream);
      put_ += parts.size();
      if (parts.size() > 1) schedule_.has_steps_of_variables_ = true;
    }

    // `used`: the variable whose rows the thread uses. The thread may wait only for variables made after it,
    // or is refused.
    void look_up_on_device(LookUpPurpose purpose, ExploredVariable* used = nullptr) {
      at("look-up on a stream");
      const std::vector<OnDevice*> parts = begin_step(used);
      if (parts.empty()) return;
      std::vector<std::vector<const Table*>> partitions;
      std::vector<Table::LookUpOnDevice> batches;
      for (OnDevice* part : parts) {
        const std::span<Table* const> tables = part->on->table->all();
        partitions.emplace_back(tables.begin(), tables.end());
        batches.push_back({partitions.back(), part->on_device(), part->out.address()});
        part->reads = part->on->begin_reads(
            part->of, purpose == LookUpPurpose::kServing ? "served on a stream" : "look-up on a stream");
      }
      Table::lookup_on_device(batches, purpose);
      for (OnDevice* part : parts) {
        // Later operations are ordered after it, so it doesn't see them.
        for (const size_t number : part->reads) part->on->history.end(number);
        part->on->looked_up += part->of.size();
        part->out.copy_to(part->rows.data(), part->of.size() * kDim, part->stream);
      }
      end_step(parts);
    }
    void train_on_device() {
      at("apply on a stream");
      const std::vector<OnDevice*> parts = begin_step();
      if (parts.empty()) return;
      const int64_t version = schedule_.next_step();
      std::vector<Table::ApplyOnDevice> batches;
      std::deque<MutexLock> whole_batches;
      for (OnDevice* part : parts) {
        ExploredVariable& on = *part->on;
        std::fill_n(part->rows.data(), part->of.size() * kDim, 1.0f);
        part->out.copy_from(part->rows.data(), part->of.size() * kDim, part->stream);
        batches.push_back({on.table->all(), part->on_device(), {part->out.address(), part->of.size()}, {}});
        part->apply = on.begin_apply(part->of, version);
        if (on.partitions() > 1) whole_batches.emplace_back(on.table->whole_batches());
      }
      try {
        Table::apply_on_device(batches, version);
      } catch (...) {
        for (OnDevice* part : parts) part->on->history.note_refused(*part->apply);
        throw;
      }
      for (OnDevice* part : parts) part->on->history.end(*part->apply);  // later operations see it
      end_step(parts);
    }
    // Prefetches a batch that may come or not.
    void ask_ahead(ExploredVariable& on) {
      at("what is asked for ahead");
      if (draws_.one_in(8)) return on.table->forget_prefetched();
      const Variable::Turns turns = on.table->next_turn();
      if (put_ == steps_.size() || draws_.one_in(3)) {
        const std::vector<int64_t> ids = ExploredVariable::some_ids(draws_);
        on.table->prefetch(ids, turns);
        on.note_asked(ids, turns);
        return;
      }
      OnDevice& asked = steps_[put_];
      const gpu::Stream stream = *schedule_.streams_[draws_.below(kStreams)];
      asked.put_ids(on, ExploredVariable::some_ids(draws_), stream);
      on.table->prefetch_on_device(asked.on_device(), turns);
      on.note_asked(asked.of, turns);
      end_step({&asked});
    }
    void collect() {
      if (collected_ == put_) return;
      at("what a stream gave");
      const OnDevice& step = steps_[collected_++];
      schedule_.device_->synchronise(gpu::Event(step.is_done));
      if (step.is_look_up()) step.on->saw_reads(step.reads, step.of, step.rows.data());
    }

    // Waits for this thread's work on streams, so that another stream may read its results.
    void synchronise() {
      at("synchronise");
      for (ExploredVariable& variable : schedule_.variables_) variable.table->synchronise();
      for (; collected_ != put_; ++collected_) {
        const OnDevice& step = steps_[collected_];
        std::vector<float> rows(step.of.size() * kDim);
        step.out.copy_to(rows.data(), rows.size(), aside_);
        if (step.is_look_up()) step.on->saw_reads(step.reads, step.of, rows.data());
      }
    }

    void drop(ExploredVariable& on) {
      at("drop");
      const auto key = static_cast<int64_t>(draws_.below(kKeys));
      const size_t number =
          on.history.begin({.rows = {{key, {}}}, .kind = Operation::Kind::kDrop, .name = "drop"});
      const uint64_t dropped = on.history.within(number, [&] { return on.table->drop({&key, 1}); });
      on.history.at(number).rows[key].count = static_cast<int64_t>(dropped);
      on.history.end(number);
    }

    // The second query mostly finds no step in flight, since the first has waited for them.
    void see(ExploredVariable& on) {
      const bool has_versions_first = draws_.below(2) == 0;
      if (has_versions_first) see_versions(on);
      see(on, Operation::Kind::kRead, "frequencies", &Variable::frequencies, &RowState::count);
      if (!has_versions_first) see_versions(on);
    }
    void see_versions(ExploredVariable& on) {
      see(on, Operation::Kind::kReadVersions, "versions", &Variable::versions, &RowState::version);
    }
    template <class Ask>
    void see(ExploredVariable& on, Operation::Kind kind, const char* name, Ask ask,
             int64_t RowState::* what) {
      at(name);
      const std::vector<int64_t> keys = ExploredVariable::all_keys();
      const size_t number = on.history.begin({.kind = kind, .name = name});
      const std::vector<int64_t> seen = ((*on.table).*ask)(keys);
      for (const int64_t key : keys) on.history.at(number).rows[key].*what = seen[static_cast<size_t>(key)];
      on.history.end(number);
    }

    void export_rows(ExploredVariable& on) {
      at("export");
      const size_t number = on.history.begin({.kind = Operation::Kind::kMoment, .name = "export"});
      on.history.within(number, [&] { on.saw_rows(number, on.table->export_rows()); });
      on.history.end(number);
    }

    void save(ExploredVariable& on) {
      at("save");
      std::optional<MutexLock> checkpoint;
      if (on.partitions() > 1) checkpoint.emplace(on.checkpoints);
      const std::string path = schedule_.directory_ / ("save" + std::to_string(schedule_.saves_++));
      UnwaitingCalls calls;
      EvictionRule eviction;
      if (draws_.one_in(3))
        eviction.min_version = static_cast<int64_t>(draws_.below(static_cast<uint64_t>(on.next_step) + 1));
      std::deque<checkpoint::Writer> files;
      std::vector<std::unique_ptr<TableSave>> saves;
      std::vector<std::string> paths;
      for (size_t p = 0; p < on.partitions(); ++p) {
        paths.push_back(path + "." + std::to_string(p));
        files.emplace_back(paths.back(), on.table->parts().layout, identity(on, p), calls);
        saves.push_back(on.table->partition(p).prepare_save(files.back(), eviction));
      }
      if (draws_.one_in(3)) some_operation(/*may_save=*/false);
      at("save, its moment");
      const size_t number = on.history.begin(
          {.kind = Operation::Kind::kSave, .name = "save", .min_version = eviction.min_version.value_or(-1)});
      {
        std::optional<MutexLock> lock;
        if (saves.size() > 1) lock.emplace(on.table->whole_batches());
        for (const auto& save : saves) save->begin(/*waiting_keys=*/false);
      }
      on.history.end(number);
      try {
        for (uint64_t left = draws_.below(3); left != 0; --left) some_operation(/*may_save=*/false);
      } catch (...) {
        on.history.note_given_up(number);
        throw;
      }
      at("save, its rows");
      std::vector<TableState> states;
      for (size_t p = 0; p < saves.size(); ++p) {
        const SavedTable saved = saves[p]->write(OnDamage::kRaise);
        check(saved.skipped.empty(), "rows weren't saved");
        files[p].finish();
        on.saw_rows(number, paths[p]);
        states.push_back(saved.state);
      }
      on.saved.push_back({paths, on.history.at(number).rows, states});
    }

    void drop_a_checkpoint(ExploredVariable& on) {
      constexpr size_t kMaxKept = 8;
      if (on.persisted.size() < kMaxKept) return;
      const ExploredVariable::Persisted oldest = on.persisted.front();
      for (size_t p = 0; p < on.partitions(); ++p) on.table->partition(p).drop_persisted(oldest.numbers[p]);
      on.history.note_refused(oldest.moment);
      on.persisted.erase(on.persisted.begin());
    }

    // Makes a checkpoint, in one thread at a time, as a program does.
    void persist(ExploredVariable& on, bool may_save) {
      if (!on.has_pool() || std::exchange(on.is_persisting, true)) return train(on, may_save);
      drop_a_checkpoint(on);
      at("checkpoint, its moment");
      ExploredVariable::Persisted made;
      UnwaitingCalls calls;
      made.moment = on.history.begin({.kind = Operation::Kind::kMoment, .name = "checkpoint"});
      on.history.within(made.moment, [&] {
        begin_checkpoint(on, made, calls);
        on.history.end(made.moment);
        for (uint64_t left = draws_.below(3); left != 0; --left) some_operation(may_save);
        at("checkpoint, its rows");
        const bool is_dropped = draws_.one_in(4);
        for (size_t p = 0; p < on.partitions(); ++p) {
          if (is_dropped) {
            on.table->partition(p).drop_persisted(made.numbers[p]);
          } else {
            on.table->partition(p).finish_persist(made.numbers[p], log::CheckpointId{});
          }
        }
        if (is_dropped) {
          on.history.note_refused(made.moment);
        } else {
          on.persisted.push_back(made);
        }
      });
      on.is_persisting = false;
    }
    // Begins the checkpoints of all partitions between the same two batches.
    void begin_checkpoint(ExploredVariable& on, ExploredVariable::Persisted& made, UnwaitingCalls& calls) {
      const std::string path = schedule_.directory_ / ("state" + std::to_string(schedule_.saves_++));
      std::deque<checkpoint::Writer> files;
      for (size_t p = 0; p < on.partitions(); ++p) {
        made.paths.push_back(path + "." + std::to_string(p));
        files.emplace_back(made.paths.back(), on.table->parts().layout, identity(on, p), calls);
      }
      {
        std::optional<MutexLock> lock;
        if (on.partitions() > 1) lock.emplace(on.table->whole_batches());
        for (size_t p = 0; p < on.partitions(); ++p) {
          const BegunCheckpoint begun =
              on.table->partition(p).begin_persist(files[p], /*waiting_keys=*/false);
          made.numbers.push_back(begun.number);
          made.states.push_back(begun.state);
        }
      }
      for (checkpoint::Writer& file : files) file.finish();
    }
    static checkpoint::FileIdentity identity(const ExploredVariable& on, size_t partition) {
      return {.partition = static_cast<uint32_t>(partition),
              .partition_count = static_cast<uint32_t>(on.partitions())};
    }

    // Look-ups go on during a restore, and see rows go and come.
    void restore(ExploredVariable& on) {
      if (on.saved.empty()) return;
      at("restore");
      std::optional<MutexLock> checkpoint;
      if (on.partitions() > 1) checkpoint.emplace(on.checkpoints);
      const ExploredVariable::Saved saved = on.saved[draws_.below(on.saved.size())];
      History& history = on.history;
      const size_t clear = history.begin({.kind = Operation::Kind::kClear, .name = "restore, which clears"});
      const size_t fill = history.begin(
          {.rows = saved.rows, .kind = Operation::Kind::kFill, .name = "restore", .after = clear});
      const auto refill = [&] {
        std::optional<MutexLock> lock;
        if (on.partitions() > 1) lock.emplace(on.table->whole_batches());
        for (size_t p = 0; p < on.partitions(); ++p) {
          on.table->partition(p).restore({.number = p, .count = on.partitions()}, {saved.paths},
                                         saved.states[p], /*waiting_keys=*/false);
        }
      };
      history.within(clear, [&] { history.within(fill, refill); });
      history.end(clear);
      history.end(fill);
    }

    Schedule& schedule_;
    Draws draws_;
    const bool closes_;
    const gpu::OwnedStream aside_;
    std::deque<OnDevice> steps_;
    size_t put_ = 0;        // steps put on streams
    size_t collected_ = 0;  // of these, the ones whose results were read
  };

  // Returns one step number for all variables that a step trains.
  int64_t next_step() {
    int64_t step = 0;
    for (const ExploredVariable& variable : variables_) step = std::max(step, variable.next_step);
    for (ExploredVariable& variable : variables_) variable.next_step = step + 1;
    return step;
  }

  void look_at_the_end() {
    PrefetchedIds asked_for;
    for (ExploredVariable& variable : variables_) {
      variable.look_at_the_end(*streams_[0]);
      asked_for.insert(variable.asked_for.begin(), variable.asked_for.end());
    }
    check(prefetched_ids() == asked_for, "others are brought up than were asked for");
  }

  Draws draws_;
  TemporaryDirectory directory_;
  const std::shared_ptr<ExploredDevice> device_;
  const std::shared_ptr<gpu::Device> opened_;
  std::deque<ExploredVariable> variables_;
  std::vector<std::unique_ptr<gpu::OwnedStream>> streams_;
  std::vector<Does> kinds_;  // to draw from; a kind's frequency is its number of entries
  uint64_t saves_ = 0;
  bool closes_ = false;
  bool has_steps_of_variables_ = false;
};

}  // namespace

std::string replay(uint64_t seed) { return "interleavings_test --seed " + std::to_string(seed) + " --print"; }

Explored explore(uint64_t seed) {
  tested_case() = "seed " + std::to_string(seed) + " (" + replay(seed) + ")";
  Scheduler& scheduler = Scheduler::instance();
  scheduler.fail = [](const std::string& what) { fail(what); };
  scheduler.begin(seed);
  Explored explored{};
  try {
    Schedule schedule(seed);
    schedule.run();
    explored.has_checkpoints = schedule.has_checkpoints(1);
    explored.has_checkpoints_of_partitions = schedule.has_checkpoints(2);
    explored.has_steps_of_variables = schedule.has_steps_of_variables();
    scheduler.now_at("the table's end");
  } catch (const std::exception& error) {
    fail(std::string("an exception: ") + error.what());
  }
  explored.trace = scheduler.end();
  explored.points = scheduler.points();
  return explored;
}

}  // namespace embstore::explorer
