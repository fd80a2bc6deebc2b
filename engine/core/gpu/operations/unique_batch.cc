#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

UniqueBatch::UniqueBatch(Device& device, uint32_t most_ids, uint32_t block_threads)
    : device_(device),
      block_threads_(block_threads),
      table_(device, table_entries(most_ids)),
      numbers_(device, table_entries(most_ids)),
      entries_(device, most_ids),
      block_firsts_(device, Grid::of(most_ids, block_threads).blocks),
      keys_(device, most_ids),
      inverse_(device, most_ids),
      count_(device, 1) {}

void UniqueBatch::make_unique(std::span<const Input> batches, Stream stream) {
  if (batches.empty()) return;
  Device& device = batches.front().to->device_;
  Launches launches;
  for (const Input& of : batches) {
    const uint64_t entries = table_entries(of.ids.count);
    launches.add(clear_table, Grid::of(entries, of.to->block_threads_), of.to->arguments(of));
  }
  launches.put(device, stream);
  for (const auto* kernel : {&claim_ids, &count_first}) {
    for (const Input& of : batches) launches.add(*kernel, of.to->grid(of), of.to->arguments(of));
    launches.put(device, stream);
  }
  for (const Input& of : batches) {
    launches.add(
        scan_counts, {1, of.to->block_threads_},
        {of.to->block_firsts_.first(of.to->grid(of).blocks), of.to->count_.global(), of.count_on_host});
  }
  launches.put(device, stream);
  for (const auto* kernel : {&number_first, &number_ids}) {
    for (const Input& of : batches) launches.add(*kernel, of.to->grid(of), of.to->arguments(of));
    launches.put(device, stream);
  }
}

UniqueArguments UniqueBatch::arguments(const Input& of) const {
  const Global<uint32_t> table = table_.first(table_entries(of.ids.count));
  return {of.ids,
          of.kept,
          of.id_count,
          table,
          numbers_.first(table.count),
          entries_.global(),
          block_firsts_.first(grid(of).blocks),
          keys_.global(),
          inverse_.global()};
}

}  // namespace embstore::gpu
