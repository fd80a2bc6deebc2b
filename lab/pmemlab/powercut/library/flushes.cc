#include "flushes.h"

#include <cstring>

namespace powercut {
namespace {

void copy_line(std::array<std::byte, kLine>& to, const std::byte* from) {
  const auto* words = reinterpret_cast<const volatile uint64_t*>(from);
  for (size_t word = 0; word < kLine / kWord; ++word) {  // whole, while others store
    const uint64_t value = words[word];
    std::memcpy(to.data() + word * kWord, &value, kWord);
  }
}

}  // namespace

FlushedLines& Flushes::start_thread() {
  threads_.emplace_back().thread = static_cast<uint32_t>(threads_.size());
  return threads_.back();
}

bool Flushes::is_pending(const FlushedLines& thread, const Page& page, const MediumFile& file,
                         uint64_t offset) {
  const size_t line = offset % kPage / kLine;
  if (page.thread[line] != thread.thread || page.index[line] >= thread.lines.size()) return false;
  const FlushedLine& pending = thread.lines[page.index[line]];
  return pending.file == &file && pending.offset == offset;
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
      const Page* page = file.page(offset);
      const bool pending = page != nullptr && is_pending(thread, *page, file, offset);
      const std::byte* known =
          pending ? thread.lines[page->index[offset % kPage / kLine]].bytes.data() : file.line(offset);
      if (std::memcmp(now.data(), known, kLine) == 0) {
        ++count.clean;
        // What another thread flushed earlier and drains later is older than this.
        if (page != nullptr && !pending)
          file.writable_page(offset).sequence[offset % kPage / kLine] = sequence;
        continue;
      }
      Page& own = file.writable_page(offset);
      const size_t line = offset % kPage / kLine;
      if (pending) {
        thread.lines[own.index[line]] = {&file, offset, sequence, now};
        continue;
      }
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
