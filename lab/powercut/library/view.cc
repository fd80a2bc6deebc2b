#include "view.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "system_calls.h"

namespace powercut {

View::View(const std::string& path) : descriptor_(system_calls::open(path.c_str(), O_RDONLY)) {
  struct stat status{};
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0 || status.st_size == 0) return;
  size_ = static_cast<uint64_t>(status.st_size);
  void* address = system_calls::map(size_, PROT_READ, MAP_SHARED, descriptor_);
  if (address != MAP_FAILED) mapping_ = static_cast<const std::byte*>(address);
}

View::~View() {
  if (mapping_ != nullptr) system_calls::unmap(const_cast<std::byte*>(mapping_), size_);
  if (descriptor_ >= 0) system_calls::close(descriptor_);
}

bool View::in_hole(uint64_t offset) {
  if (offset >= data_end_) {
    const off_t begin = lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
    const off_t end = begin < 0 ? -1 : lseek(descriptor_, begin, SEEK_HOLE);
    data_begin_ = begin < 0 ? size_ : static_cast<uint64_t>(begin);
    data_end_ = end < 0 ? size_ : static_cast<uint64_t>(end);
  }
  return offset + kPage <= data_begin_;
}

bool View::read(uint64_t page, std::array<std::byte, kPage>& bytes) {
  const uint64_t offset = page * kPage;
  if (offset >= size_ || mapping_ == nullptr || in_hole(offset)) return false;
  const size_t there = std::min<uint64_t>(kPage, size_ - offset);
  const auto* from = reinterpret_cast<const volatile uint64_t*>(mapping_ + offset);
  for (size_t word = 0; word < kPage / kWord; ++word) {  // bytes after the end in its page are zeros
    const uint64_t value = from[word];
    std::memcpy(bytes.data() + word * kWord, &value, kWord);
  }
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(there), bytes.end(), std::byte{0});
  return true;
}

}  // namespace powercut
