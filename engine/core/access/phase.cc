#include "access/phase.h"

#include <algorithm>
#include <span>

namespace embstore {
namespace {

thread_local Phase* innermost_phase = nullptr;

}  // namespace

Phase::Phase(TierMeter& meter) : outer_(innermost_phase) {
  enter(meter);
  innermost_phase = this;
  began_ = Clock::now();
}

void Phase::add_meter(TierMeter& meter) { enter(meter); }

void Phase::enter(TierMeter& meter) {
  SharedMedium& medium = *meter.medium();
  // A thread is counted once, however deep its phases are nested.
  bool is_new = true;
  for (const Phase* phase = this; phase != nullptr && is_new; phase = phase->outer_) {
    is_new = !phase->is_at(medium);
  }
  meters_[meter_count_++] = {&meter, is_new ? medium.enter() : medium.threads(), is_new};
  notes_ = std::max(notes_, meter.wanted_notes());
}

bool Phase::is_at(const SharedMedium& medium) const {
  return std::any_of(meters_.begin(), meters_.begin() + static_cast<ptrdiff_t>(meter_count_),
                     [&medium](const MeterEntry& at) { return at.meter->medium().get() == &medium; });
}

size_t Phase::tally_of(TierMeter& meter, Access access, uint64_t size_bytes) {
  for (size_t i = 0; i < tally_count_; ++i) {
    const Tally& tally = tallies_[i];
    if (tally.meter == &meter && tally.access == access && tally.size_bytes == size_bytes) return i;
  }
  tallies_[tally_count_] = {&meter, access, 0, 0, size_bytes, 0, 0};
  return tally_count_++;
}

void Phase::add(TierMeter& meter, Access access, uint64_t accesses, uint64_t bytes, uint64_t size_bytes,
                uint64_t rounds) {
  Tally& tally = tallies_[tally_of(meter, access, size_bytes)];
  tally.accesses += accesses;
  tally.bytes += bytes;
  tally.rounds += rounds;
}

void Phase::touch(TierMeter& meter, Access access, uint64_t size_bytes, const void* address) noexcept {
  const size_t tally = tally_of(meter, access, size_bytes);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uint64_t first = begin / TouchedLine::kBytes;
  const uint64_t last = (begin + size_bytes - 1) / TouchedLine::kBytes;
  tallies_[tally].touched_lines += last - first + 1;
  try {
    for (uint64_t line = first; line <= last; ++line) {
      if (notes_ == TierMeter::Notes::kAllLines || LineClasses::is_sampled(line)) {
        lines_.push_back({line, access, static_cast<uint8_t>(tally)});
      }
    }
  } catch (const std::bad_alloc&) {
    notes_ = TierMeter::Notes::kPhases;  // lines are a sample: without memory it is a smaller one
  }
}

Phase::~Phase() {
  const Clock::duration took = Clock::now() - began_;
  innermost_phase = outer_;
  if (outer_ != nullptr) outer_->of_inner_phases_ += took;
  const auto elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::max(took - of_inner_phases_, Clock::duration{0}));
  const std::span<const Tally> tallies = std::span(tallies_).first(tally_count_);
  uint64_t bytes = 0;
  for (const Tally& tally : tallies) bytes += tally.bytes;
  const double ns_a_byte =
      bytes == 0 ? 0.0 : static_cast<double>(elapsed.count()) / static_cast<double>(bytes);
  for (const MeterEntry& at : std::span(meters_).first(meter_count_)) {
    int threads = at.threads;
    // Threads that came or went meanwhile are taken to have been there half the time.
    if (at.was_entered) threads = (at.threads + at.meter->medium()->leave() + 1) / 2;
    for (const Tally& tally : tallies) {
      if (tally.meter != at.meter || tally.accesses == 0) continue;
      at.meter->add({tally.access, threads, tally.accesses, tally.bytes,
                     static_cast<uint64_t>(ns_a_byte * static_cast<double>(tally.bytes))});
    }
    if (notes_ != TierMeter::Notes::kCounts) [[unlikely]]
      notify_watchers(at, threads, ns_a_byte);
  }
}

void Phase::notify_watchers(const MeterEntry& at, int threads, double ns_a_byte) noexcept {
  if (at.meter->wanted_notes() == TierMeter::Notes::kCounts) return;
  std::array<PhaseCount, kMaxTallies> counts;
  std::array<size_t, kMaxTallies> number_of{};
  size_t count = 0;
  for (size_t i = 0; i < tally_count_; ++i) {
    const Tally& tally = tallies_[i];
    number_of[i] = kMaxTallies;
    if (tally.meter != at.meter || tally.accesses == 0) continue;
    number_of[i] = count;
    counts[count++] = {{tally.access, threads, tally.accesses, tally.bytes,
                        static_cast<uint64_t>(ns_a_byte * static_cast<double>(tally.bytes)),
                        std::max<uint64_t>(tally.rounds, 1)},
                       tally.touched_lines};
  }
  if (count == 0) return;
  try {
    std::vector<TouchedLine> lines;
    for (const TouchedLine& line : lines_) {
      const size_t number = number_of[line.group];
      if (number != kMaxTallies) lines.push_back({line.line, line.access, static_cast<uint8_t>(number)});
    }
    for (const std::shared_ptr<PhaseWatcher>& watcher : at.meter->watchers()) {
      watcher->phase_ended(began_, std::span(counts).first(count), lines);
    }
  } catch (const std::bad_alloc&) {
    // An update that is under way must not fail because there is no memory for watching it.
  }
}

}  // namespace embstore
