#include "update/update_together.h"

#include <atomic>
#include <utility>

#include "lookup/damage_collector.h"

namespace embstore {

UpdateTogether::UpdateTogether(BatchShares& shares, MakeUpdate make_update)
    : shares_(shares), make_update_(std::move(make_update)), updates_(shares.count()) {}

bool UpdateTogether::prepare(uint64_t& new_rows) {
  std::atomic<uint64_t> new_rows_of_all{0};
  std::atomic<bool> is_full{false};
  DamageCollector damaged;
  shares_.for_each([&](size_t number) {
    updates_[number] = make_update_(shares_.share(number));
    uint64_t new_rows_of_share = 0;
    damaged.collect([&] {
      if (!updates_[number]->prepare(new_rows_of_share)) is_full = true;
    });
    new_rows_of_all += new_rows_of_share;
  });
  damaged.throw_if_any();
  new_rows = new_rows_of_all;
  if (!is_full) return true;
  for (auto& update : updates_) update.reset();  // gives back what the shares have reserved
  return false;
}

void UpdateTogether::commit(const UpdateTime& time) noexcept {
  shares_.for_each([&](size_t number) {
    updates_[number]->commit(time);
    updates_[number].reset();
    shares_.recycle(number);
  });
}

}  // namespace embstore
