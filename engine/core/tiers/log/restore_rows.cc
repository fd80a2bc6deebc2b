#include "tiers/log/restore_rows.h"

#include <algorithm>

#include "threads/safe_point.h"
#include "threads/shared_work.h"

namespace embstore::log {

void restore_rows(std::span<const ExtentSlots> extents, size_t records_at_once, int threads,
                  const ReadHeaders& read, const DurableTier::Restored& visit) {
  struct Piece {
    size_t extent;
    size_t first_word;
  };
  const size_t words_at_once = std::max<size_t>(1, records_at_once / 64);
  std::vector<Piece> pieces;
  for (size_t extent = 0; extent < extents.size(); ++extent) {
    for (size_t word = 0; word < extents[extent].rows.size(); word += words_at_once) {
      pieces.push_back({extent, word});
    }
  }
  share_work(pieces.size(), static_cast<size_t>(threads), [&](const auto& next) {
    std::vector<Slot> slots;
    std::vector<RowHeader> headers;
    for (size_t i = next(); i < pieces.size(); i = next()) {
      const auto& [first_slot, words] = extents[pieces[i].extent];
      const size_t end = std::min(pieces[i].first_word + words_at_once, words.size());
      slots.clear();
      headers.clear();
      for (size_t word = pieces[i].first_word; word < end; ++word) {
        for_each_row(words[word], first_slot + word * 64,
                     [&](uint64_t slot) { slots.push_back(static_cast<Slot>(slot)); });
      }
      if (slots.empty()) continue;
      read(pieces[i].extent, slots, headers);
      visit(headers, slots);
      safe_point();
    }
  });
}

}  // namespace embstore::log
