// The medium's version of a file. The file itself is the program's version.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace powercut {

constexpr size_t kWord = 8;      // unit that memory takes whole or not at all
constexpr size_t kLine = 64;     // unit of a flush
constexpr size_t kSector = 512;  // unit that a disk takes whole
constexpr size_t kPage = 4096;   // unit of the kernel's write-back

inline constexpr std::array<std::byte, kPage> kZeros{};

struct Page {
  std::array<std::byte, kPage> bytes{};
  // For each line: the flush that its bytes come from. An older flush must not undo them at its drain.
  std::array<uint64_t, kPage / kLine> sequence{};
  // For each line: the thread that flushed it last, and the line's index among that thread's flushed lines.
  std::array<uint32_t, kPage / kLine> thread{};
  std::array<uint32_t, kPage / kLine> index{};
};

class MediumFile {
 public:
  // number: of the file, in the order in which files were first followed. path: a name of the file that lasts
  // as long as the program runs.
  MediumFile(size_t number, size_t root, uint64_t id, std::string path)
      : number_(number), root_(root), id_(id), path_(std::move(path)) {}

  // Takes the whole current file into the medium. Returns whether that made a difference.
  bool capture(uint64_t sequence);
  // Takes the current pages of a part into the medium. Returns whether that made a difference.
  bool capture_part(uint64_t offset, uint64_t bytes, uint64_t sequence);
  // Takes the current size into the medium. Returns whether that made a difference.
  bool capture_size();
  // Makes the medium's size of the file at least `bytes`, which the file has; later growth may be missing.
  void reach_size(uint64_t bytes);
  // For a file just made: the medium has nothing of it except, perhaps, its name.
  void start_empty() { sizes_ = {0}; }
  // REQUIRES: called after every call that may change the size.
  void note_size();

  // Returns null for a page of zeros.
  const Page* page(uint64_t offset) const;
  Page& writable_page(uint64_t offset);
  const std::byte* line(uint64_t offset) const;
  // Returns whether a flush with this sequence number is newer than the medium's version of the line.
  bool takes_line(uint64_t offset, uint64_t sequence) const;
  // Takes a line's content at a flush into the medium, unless the medium has that of a later flush.
  void take_line(uint64_t offset, const std::byte* bytes, uint64_t sequence);

  // Marks the medium's version of the line as that of a flush with this sequence number.
  void supersede_line(uint64_t offset, uint64_t sequence) {
    if (page(offset) != nullptr) writable_page(offset).sequence[offset % kPage / kLine] = sequence;
  }

  size_t number() const { return number_; }
  size_t root() const { return root_; }
  uint64_t id() const { return id_; }
  const std::string& path() const { return path_; }
  size_t page_count() const { return pages_.size(); }
  // The medium's size, then each size that the file has had since.
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  // Zeros the medium's version from `bytes` on.
  void cut_off(uint64_t bytes);

  // If the file was mapped, lines and words reach the medium; otherwise pages and sectors.
  bool mapped = false;

 private:
  size_t number_;
  size_t root_;
  uint64_t id_;
  std::string path_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<uint64_t> sizes_{0};
  uint64_t captured_at_ = 0;  // flushes before it are older than the medium's version
};

}  // namespace powercut
