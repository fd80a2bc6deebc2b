#include "medium_file.h"

#include <algorithm>
#include <cstring>

#include "system_calls.h"
#include "view.h"

namespace powercut {

bool MediumFile::capture(uint64_t sequence) {
  View view(path_);
  bool changed = sizes_.size() > 1 || sizes_.front() != view.size();
  const uint64_t count = (view.size() + kPage - 1) / kPage;
  std::array<std::byte, kPage> bytes;
  for (uint64_t number = 0; number < count; ++number) {
    const bool has_data = view.read(number, bytes);
    const Page* kept = page(number * kPage);
    if (!has_data && kept == nullptr) continue;
    const auto& now = has_data ? bytes : kZeros;
    if (std::memcmp(kept == nullptr ? kZeros.data() : kept->bytes.data(), now.data(), kPage) == 0) continue;
    writable_page(number * kPage).bytes = now;
    changed = true;
  }
  if (pages_.size() > count) pages_.resize(count);
  sizes_ = {view.size()};
  captured_at_ = sequence;
  return changed;
}

bool MediumFile::capture_part(uint64_t offset, uint64_t bytes, uint64_t sequence) {
  View view(path_);
  bool changed = false;
  std::array<std::byte, kPage> now;
  for (uint64_t at = offset / kPage * kPage; at < offset + bytes; at += kPage) {
    const bool has_data = view.read(at / kPage, now);
    if (!has_data && page(at) == nullptr) continue;
    Page& own = writable_page(at);
    const auto& seen = has_data ? now : kZeros;
    changed = changed || own.bytes != seen;
    own.bytes = seen;
    own.sequence.fill(sequence);
  }
  return changed;
}

bool MediumFile::capture_size() {
  note_size();
  const bool changed = sizes_.size() > 1;
  sizes_ = {sizes_.back()};
  return changed;
}

void MediumFile::reach_size(uint64_t bytes) {
  const auto shorter =
      std::find_if(sizes_.rbegin(), sizes_.rend(), [bytes](uint64_t size) { return size < bytes; });
  if (shorter == sizes_.rend()) return;
  const auto later = shorter.base();
  for (auto at = sizes_.begin() + 1; at < later; ++at) {
    if (at[0] < at[-1]) cut_off(*at);
  }
  sizes_.erase(sizes_.begin(), later);
  if (sizes_.empty() || sizes_.front() != bytes) sizes_.insert(sizes_.begin(), bytes);
}

void MediumFile::note_size() {
  struct stat status{};
  if (stat(path_.c_str(), &status) != 0) return;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (sizes_.back() != size) sizes_.push_back(size);
}

const Page* MediumFile::page(uint64_t offset) const {
  const uint64_t number = offset / kPage;
  return number < pages_.size() ? pages_[number].get() : nullptr;
}

Page& MediumFile::writable_page(uint64_t offset) {
  const uint64_t number = offset / kPage;
  if (number >= pages_.size()) pages_.resize(number + 1);
  if (pages_[number] == nullptr) pages_[number] = std::make_unique<Page>();
  return *pages_[number];
}

const std::byte* MediumFile::line(uint64_t offset) const {
  const Page* at = page(offset);
  return at == nullptr ? kZeros.data() : at->bytes.data() + offset % kPage;
}

bool MediumFile::takes_line(uint64_t offset, uint64_t sequence) const {
  const Page* at = page(offset);
  return sequence >= captured_at_ && (at == nullptr || sequence >= at->sequence[offset % kPage / kLine]);
}

void MediumFile::take_line(uint64_t offset, const std::byte* bytes, uint64_t sequence) {
  if (!takes_line(offset, sequence)) return;
  Page& at = writable_page(offset);
  at.sequence[offset % kPage / kLine] = sequence;
  std::memcpy(at.bytes.data() + offset % kPage, bytes, kLine);
  // A page of a file mapped with MAP_SYNC can be stored to only when the file system's metadata for it,
  // including the size, is durable.
  if (offset >= sizes_.front()) {
    note_size();
    sizes_ = {sizes_.back()};
  }
}

void MediumFile::cut_off(uint64_t bytes) {
  const uint64_t whole = (bytes + kPage - 1) / kPage;
  if (pages_.size() > whole) pages_.resize(whole);
  if (bytes % kPage != 0 && page(bytes) != nullptr) {
    auto& last = writable_page(bytes).bytes;
    std::fill(last.begin() + static_cast<ptrdiff_t>(bytes % kPage), last.end(), std::byte{0});
  }
}

}  // namespace powercut
