#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

UniqueBatch::UniqueBatch(Device& device, uint32_t max_ids, uint32_t block_threads)
    : device_(device),
      block_threads_(block_threads),
      table_(device, table_entries(max_ids)),
      numbers_(device, table_entries(max_ids)),
      entries_(device, max_ids),
      block_firsts_(device, Grid::of(max_ids, block_threads).blocks),
      keys_(device, max_ids),
      inverse_(device, max_ids),
      count_(device, 1) {}

void UniqueBatch::make_unique(std::span<const Input> batches, Stream stream) {
  if (batches.empty()) return;
  Device& device = batches.front().to->device_;
  Launches launches;
  for (const Input& batch : batches) {
    const uint64_t entries = table_entries(batch.ids.count);
    launches.add(clear_table, Grid::of(entries, batch.to->block_threads_), batch.to->arguments(batch));
  }
  launches.put(device, stream);
  for (const auto* kernel : {&claim_ids, &count_first}) {
    for (const Input& batch : batches)
      launches.add(*kernel, batch.to->grid(batch), batch.to->arguments(batch));
    launches.put(device, stream);
  }
  for (const Input& batch : batches) {
    launches.add(scan_counts, {1, batch.to->block_threads_},
                 {batch.to->block_firsts_.first(batch.to->grid(batch).blocks), batch.to->count_.global(),
                  batch.count_on_host});
  }
  launches.put(device, stream);
  for (const auto* kernel : {&number_first, &number_ids}) {
    for (const Input& batch : batches)
      launches.add(*kernel, batch.to->grid(batch), batch.to->arguments(batch));
    launches.put(device, stream);
  }
}

UniqueArguments UniqueBatch::arguments(const Input& batch) const {
  const Global<uint32_t> table = table_.first(table_entries(batch.ids.count));
  return {batch.ids,
          batch.kept,
          batch.id_count,
          table,
          numbers_.first(table.count),
          entries_.global(),
          block_firsts_.first(grid(batch).blocks),
          keys_.global(),
          inverse_.global()};
}

}  // namespace embstore::gpu
