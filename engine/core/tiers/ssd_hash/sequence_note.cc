#include "tiers/ssd_hash/sequence_note.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "errors/error.h"
#include "tiers/ssd_hash/format.h"
#include "tiers/ssd_hash/whose_rows.h"

namespace embstore::ssd_hash {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

NoteHeader header_for(const std::string& variable_name, const std::string& optimizer) {
  NoteHeader header{};
  std::memcpy(header.magic, kNoteMagic, sizeof header.magic);
  header.format_version = kFormatVersion;
  header.header_bytes = sizeof header;
  header.variable_hash = hash_of_name(variable_name);
  if (optimizer.size() >= sizeof header.optimizer) {
    throw Error(ErrorKind::kInvalidArgument, "optimizer: \"" + optimizer + "\" is too long a name");
  }
  std::copy(optimizer.begin(), optimizer.end(), header.optimizer);
  header.checksum = crc32c(&header, offsetof(NoteHeader, checksum));
  return header;
}

void check_header(const std::string& path, const NoteHeader& found, const NoteHeader& wanted,
                  const std::string& variable_name) {
  if (std::memcmp(found.magic, wanted.magic, sizeof found.magic) != 0 ||
      found.checksum != crc32c(&found, offsetof(NoteHeader, checksum))) {
    refuse(path,
           "is damaged; without this file the rows beside it can be taken over, but not how many "
           "are missing");
  }
  if (found.format_version != wanted.format_version) {
    refuse(path, "has format version " + std::to_string(found.format_version) +
                     "; this engine reads version " + std::to_string(wanted.format_version));
  }
  check_variable(path, found.variable_hash, variable_name);
  if (std::memcmp(found.optimizer, wanted.optimizer, sizeof found.optimizer) != 0) {
    const std::string name(found.optimizer, strnlen(found.optimizer, sizeof found.optimizer));
    refuse(path, "the rows beside it are those of the optimizer " + name + ", and the variable has " +
                     wanted.optimizer);
  }
}

void fill_page(char (&page)[kNoteBytes], const NoteHeader& header) {
  std::memset(page, 0, sizeof page);
  std::memcpy(page, &header, sizeof header);
}

}  // namespace

std::string SequenceNote::path_in(const std::string& directory) { return directory + "/" + kNoteName; }

struct SequenceNote::Counters {
  uint64_t handed_out;
  uint64_t written_out;
};

bool SequenceNote::exists(const std::string& directory) {
  std::error_code code;
  return std::filesystem::exists(path_in(directory), code);
}

void SequenceNote::remove(files::FileCalls& calls, const std::string& directory) {
  const std::string path = path_in(directory);
  if (calls.unlink(path.c_str()) != 0 && errno != ENOENT) {
    refuse(path, "can't be removed: " + std::generic_category().message(errno));
  }
}

std::unique_ptr<files::File> SequenceNote::made(files::FileCalls& calls, const std::string& directory,
                                                const void* page) {
  auto file = std::make_unique<files::File>(calls, path_in(directory) + ".new", O_RDWR | O_CREAT | O_TRUNC,
                                            files::FileUse{.for_the_medium = true});
  file->write_at(page, kNoteBytes, 0);
  file->sync();
  file->rename_to(path_in(directory));
  files::sync_directory(calls, directory);
  return file;
}

SequenceNote::SequenceNote(files::FileCalls& calls, const std::string& directory,
                           const std::string& variable_name, const std::string& optimizer)
    : calls_(calls), directory_(directory), was_there_(exists(directory)) {
  const NoteHeader wanted = header_for(variable_name, optimizer);
  if (was_there_) {
    file_ = std::make_unique<files::File>(calls, path_in(directory), O_RDWR);
  } else {
    char page[kNoteBytes];
    fill_page(page, wanted);
    file_ = made(calls, directory, page);
  }
  NoteHeader header{};
  if (file_->size_bytes() < kNoteBytes) refuse(file_->path(), "is truncated");
  file_->read_at(&header, sizeof header, 0);
  check_header(file_->path(), header, wanted, variable_name);
  map();
}

SequenceNote::~SequenceNote() { munmap(page_, kNoteBytes); }

void SequenceNote::map() {
  const auto pinned = file_->pin();
  void* page = mmap(nullptr, kNoteBytes, PROT_READ | PROT_WRITE, MAP_SHARED, pinned.number(), 0);
  if (page == MAP_FAILED) {
    refuse(file_->path(),
           "can't be mapped, which files that are kept need: " + std::generic_category().message(errno));
  }
  if (page_ != nullptr) munmap(page_, kNoteBytes);
  page_ = page;
  counters_ = reinterpret_cast<Counters*>(static_cast<char*>(page_) + sizeof(NoteHeader));
}

void SequenceNote::sync() {
  if (!file_->in_doubt()) {
    try {
      file_->sync();
      return;
    } catch (const files::FileError&) {
      if (!file_->in_doubt()) throw;
    }
  }
  char page[kNoteBytes];
  std::memcpy(page, page_, sizeof page);
  file_ = made(calls_, directory_, page);
  map();
}

uint64_t SequenceNote::handed_out() const {
  return std::atomic_ref(counters_->handed_out).load(std::memory_order_relaxed);
}
uint64_t SequenceNote::written_out() const {
  return std::atomic_ref(counters_->written_out).load(std::memory_order_relaxed);
}
void SequenceNote::hand_out(uint64_t sequence) {
  std::atomic_ref(counters_->handed_out).store(sequence, std::memory_order_relaxed);
}
void SequenceNote::write_out(uint64_t sequence) {
  std::atomic_ref(counters_->written_out).store(sequence, std::memory_order_relaxed);
}

}  // namespace embstore::ssd_hash
