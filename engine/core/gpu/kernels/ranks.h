// The data that the device keeps of rows beside their floats, and how accesses change it: counts, versions,
// and the stamps by which rows are ranked, as in row/ranking.h. Look-ups may be counted on several streams at
// once, and beside an update; two updates of one row may not run at once.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"
#include "row/row_header.h"
#include "row/row_meta.h"

namespace embstore::gpu {

// The arrays, by slot.
struct RankArrays {
  Global<RowMeta> metas;
  Global<uint64_t> served;  // number of counted accesses by look-ups
  Global<uint64_t> stamps;  // the stamp of the row's last access
};

struct CopyHeadersArguments {
  RankArrays ranks;
  Global<const uint32_t> slots;  // the slots of the batch's rows; none twice for put_headers
  Global<const uint32_t> count;  // one element: how many rows the batch has
  Global<RowHeader> headers;     // the headers of the batch's rows
};

EMBSTORE_KERNEL(put_headers, CopyHeadersArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0]) return;
  const uint32_t slot = arguments.slots[i];
  const RowHeader header = arguments.headers[i];
  arguments.ranks.metas[slot] =
      RowMeta::of(header.frequency, header.version, static_cast<uint16_t>(header.save_span));
  arguments.ranks.served[slot] = header.served;
  arguments.ranks.stamps[slot] = header.stamp;
}

// Copies all but the key, which the arrays don't have, into headers.
EMBSTORE_KERNEL(take_headers, CopyHeadersArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0]) return;
  const uint32_t slot = arguments.slots[i];
  const RowMeta meta = arguments.ranks.metas[slot];
  RowHeader header;
  header.key = 0;
  header.frequency = meta.frequency;
  header.version = meta.version;
  header.served = arguments.ranks.served[slot];
  header.stamp = arguments.ranks.stamps[slot];
  header.save_span = meta.save_span;
  arguments.headers[i] = header;
}

struct CountedUpdate {
  int64_t global_step;
  uint64_t first_stamp;  // the stamp of the batch's first id
  uint16_t save_span;
};

struct CountUpdatesArguments {
  RankArrays ranks;
  Global<const uint32_t> slots;      // each distinct id's slot, none twice; kNoSlot is left out
  Places places;                     // in `slots`
  uint32_t blocks;                   // the run's number of blocks
  Global<const uint32_t> positions;  // the batch's positions by distinct id, in the batch's order for each
  Global<const uint32_t> begins;     // each distinct id's begin in `positions`
  Global<const uint32_t> ends;       // each distinct id's end in `positions`
  CountedUpdate update;
};

EMBSTORE_KERNEL(count_updates_of_rows, CountUpdatesArguments) {
  for_each_place(arguments.places, arguments.slots.count, arguments.blocks, [&](uint64_t i) {
    const uint32_t slot = arguments.slots[i];
    if (slot == kNoSlot) return;
    const uint32_t end = arguments.ends[i];
    RowMeta meta = arguments.ranks.metas[slot];
    meta.count(end - arguments.begins[i], arguments.update.global_step, arguments.update.save_span);
    arguments.ranks.metas[slot] = meta;
    const uint32_t last_position = arguments.positions[uint64_t{end} - 1];
    // A batch that began later may have been counted first.
    atomic_max(arguments.ranks.stamps[slot], arguments.update.first_stamp + last_position);
  });
}

struct CountHitsArguments {
  RankArrays ranks;
  Global<const uint32_t> slots;  // the slot of each id of the batch; kNoSlot is left out
  Places places;                 // in `slots`
  uint32_t blocks;               // the run's number of blocks
  Global<const uint32_t> order;  // if given: each id's position in the caller's batch
  uint64_t first_stamp;          // the stamp of the caller's first id
};

inline constexpr uint32_t kHitsAThread = 4;

// Counts every id as an access, repeated ids too. A block first counts its ids in shared memory, in a hash
// table by slot: otherwise all threads with a frequent row would wait for each other.
EMBSTORE_KERNEL(count_hits_of_rows, CountHitsArguments) {
  constexpr uint32_t kEntries = 2 * kHitsAThread * kMaxBlockThreads;  // a power of two
  EMBSTORE_SHARED(uint32_t, slots, kEntries);
  EMBSTORE_SHARED(uint32_t, hits, kEntries);
  EMBSTORE_SHARED(uint32_t, last_positions, kEntries);
  const uint32_t threads = block_threads();
  const uint64_t end = end_of(arguments.places, arguments.slots.count);
  const uint64_t block_ids = uint64_t{kHitsAThread} * threads;
  for (uint64_t first = first_of(arguments.places) + block_index() * block_ids; first < end;
       first += arguments.blocks * block_ids) {
    for (uint32_t entry = thread_index(); entry < kEntries; entry += threads) {
      slots[entry] = kNoSlot;
      hits[entry] = 0;
      last_positions[entry] = 0;
    }
    sync_block();
    for (uint32_t own = 0; own < kHitsAThread; ++own) {
      const uint64_t i = first + own * threads + thread_index();
      const uint32_t slot = i < end ? static_cast<uint32_t>(arguments.slots[i]) : kNoSlot;
      if (slot == kNoSlot) continue;
      uint32_t entry = (slot * 0x9e3779b1) >> 16 & (kEntries - 1);
      while (true) {
        const uint32_t found = atomic_exchange_if(slots[entry], kNoSlot, slot);
        if (found == kNoSlot || found == slot) break;
        entry = (entry + 1) & (kEntries - 1);
      }
      atomic_add(hits[entry], 1);
      atomic_max(last_positions[entry],
                 arguments.order.count == 0 ? static_cast<uint32_t>(i) : arguments.order[i]);
    }
    sync_block();
    for (uint32_t entry = thread_index(); entry < kEntries; entry += threads) {
      const uint32_t slot = slots[entry];
      if (slot == kNoSlot) continue;
      atomic_add(arguments.ranks.served[slot], uint64_t{hits[entry]});
      atomic_max(arguments.ranks.stamps[slot], arguments.first_stamp + last_positions[entry]);
    }
    sync_block();  // before the table is cleared
  }
}

}  // namespace embstore::gpu
