// What the medium has of one file, beside the file itself, which is what the program sees.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace powercut {

constexpr size_t kWord = 8;      // what memory takes whole or not at all
constexpr size_t kLine = 64;     // what a flush sends
constexpr size_t kSector = 512;  // what a disk takes whole
constexpr size_t kPage = 4096;   // what the kernel writes back

inline constexpr std::array<std::byte, kPage> kZeros{};

struct Page {
  std::array<std::byte, kPage> bytes{};
  // Of each line: the flush whose bytes these are. An older flush must not undo them at its drain.
  std::array<uint64_t, kPage / kLine> sequence{};
  // Of each line: the thread that flushed it last, and where among that thread's flushed lines it is.
  std::array<uint32_t, kPage / kLine> thread{};
  std::array<uint32_t, kPage / kLine> index{};
};

class MediumFile {
 public:
  // number: of the files in the order in which they were met. path: a name of the file that it keeps as long as
  // the program runs.
  MediumFile(size_t number, size_t root, uint64_t id, std::string path)
      : number_(number), root_(root), id_(id), path_(std::move(path)) {}

  // The medium has all of the file as it's now. Says whether that made a difference.
  bool capture(uint64_t sequence);
  // The medium has the pages of a part as they are now. Says whether that made a difference.
  bool capture_part(uint64_t offset, uint64_t bytes, uint64_t sequence);
  // The file is as long as it's now on the medium, too.
  bool capture_size();
  // The medium's record of the file reaches that byte, which the file has; what it was made longer by since may be missing.
  void reach_size(uint64_t bytes);
  // The file has just come to be: the medium has nothing of it but, perhaps, its name.
  void start_empty() { sizes_ = {0}; }
  // To be called after every call that may change the size.
  void note_size();

  // Null for zeros.
  const Page* page(uint64_t offset) const;
  Page& writable_page(uint64_t offset);
  const std::byte* line(uint64_t offset) const;
  // Whether a flush of that sequence is newer than what the medium has of the line.
  bool takes_line(uint64_t offset, uint64_t sequence) const;
  // The medium takes a line as it was at a flush, unless it has that of a later one.
  void take_line(uint64_t offset, const std::byte* bytes, uint64_t sequence);

  // What the medium has of the line is as new as a flush of that sequence.
  void supersede_line(uint64_t offset, uint64_t sequence) {
    if (page(offset) != nullptr) writable_page(offset).sequence[offset % kPage / kLine] = sequence;
  }

  size_t number() const { return number_; }
  size_t root() const { return root_; }
  uint64_t id() const { return id_; }
  const std::string& path() const { return path_; }
  size_t page_count() const { return pages_.size(); }
  // The medium's, then each that the file has had since.
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  // Zeros from there on.
  void cut_off(uint64_t bytes);

  // Lines and words reach the medium where a mapping has put them; pages and sectors elsewhere.
  bool mapped = false;

 private:
  size_t number_;
  size_t root_;
  uint64_t id_;
  std::string path_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<uint64_t> sizes_{0};
  uint64_t captured_at_ = 0;  // flushes before it are older than what the medium has
};

}  // namespace powercut
