#include "flushes.h"

#include <cstring>

namespace powercut {
namespace {

void copy_line(std::array<std::byte, kLine>& to, const std::byte* from) {
  const auto* words = reinterpret_cast<const volatile uint64_t*>(from);
  for (size_t word = 0; word < kLine / kWord; ++word) {  // in whole words, while other threads store
    const uint64_t value = words[word];
    std::memcpy(to.data() + word * kWord, &value, kWord);
  }
}

}  // namespace

FlushedLines& Flushes::start_thread() {
  threads_.emplace_back().thread = static_cast<uint32_t>(threads_.size());
  return threads_.back();
}

FlushedLine* Flushes::pending(FlushedLines& thread, const MediumFile& file, uint64_t offset) {
  const Page* page = file.page(offset);
  const size_t line = offset % kPage / kLine;
  if (page == nullptr || page->thread[line] != thread.thread || page->index[line] >= thread.lines.size())
    return nullptr;
  FlushedLine& found = thread.lines[page->index[line]];
  const bool is_it = found.file == &file && found.offset == offset;
  return is_it && file.takes_line(offset, found.sequence) ? &found : nullptr;
}

Flushes::Count Flushes::flush(const Mappings& mappings, FlushedLines& thread, const void* address,
                              size_t bytes, uint64_t sequence) {
  Count count;
  const std::byte* const end = static_cast<const std::byte*>(address) + bytes;
  const std::byte* at =
      reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(address) / kLine * kLine);
  std::array<std::byte, kLine> now;
  while (at < end) {
    const auto mapped = mappings.find(at);
    if (!mapped) {
      at = mappings.next(at);
      if (at == nullptr) break;
      continue;
    }
    const std::byte* const stop = std::min(end, at + mapped->bytes);
    MediumFile& file = *mapped->file;
    for (uint64_t offset = mapped->offset; at < stop; at += kLine, offset += kLine) {
      ++count.lines;
      copy_line(now, at);
      FlushedLine* const waiting = pending(thread, file, offset);
      if (std::memcmp(now.data(), waiting != nullptr ? waiting->bytes.data() : file.line(offset), kLine) ==
          0) {
        ++count.clean;
        // An earlier flush that another thread drains later is older than this one.
        if (waiting == nullptr) file.supersede_line(offset, sequence);
        continue;
      }
      if (waiting != nullptr) {
        *waiting = {&file, offset, sequence, now};
        continue;
      }
      Page& own = file.writable_page(offset);
      const size_t line = offset % kPage / kLine;
      own.thread[line] = thread.thread;
      own.index[line] = static_cast<uint32_t>(thread.lines.size());
      thread.lines.push_back({&file, offset, sequence, now});
    }
  }
  return count;
}

bool Flushes::drain(FlushedLines& thread) {
  const bool any = !thread.lines.empty();
  for (const FlushedLine& line : thread.lines)
    line.file->take_line(line.offset, line.bytes.data(), line.sequence);
  thread.lines.clear();
  return any;
}

void Flushes::settle(Chance& chance, double probability) {
  for (FlushedLines& thread : threads_) {
    for (const FlushedLine& line : thread.lines) {
      if (chance.happens(probability)) line.file->take_line(line.offset, line.bytes.data(), line.sequence);
    }
    thread.lines.clear();
  }
}

}  // namespace powercut
