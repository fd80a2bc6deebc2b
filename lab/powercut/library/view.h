// A file as the program sees it, page by page. Holes are found through the file system and not read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "medium_file.h"

namespace powercut {

class View {
 public:
  explicit View(const std::string& path);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  uint64_t size() const { return size_; }
  bool exists() const { return descriptor_ >= 0; }
  // Returns false for a page of zeros, which isn't copied. Reads words whole while other threads store.
  bool read(uint64_t page, std::array<std::byte, kPage>& bytes);

 private:
  bool in_hole(uint64_t offset);

  int descriptor_;
  uint64_t size_ = 0;
  const std::byte* mapping_ = nullptr;
  uint64_t data_begin_ = 0;  // of the first data at or after the page read last
  uint64_t data_end_ = 0;
};

}  // namespace powercut
