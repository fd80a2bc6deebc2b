// Functions by which tests write, inspect and damage files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "testing/check.h"

namespace embstore {

inline std::string bytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  check(stream.good(), file + " can't be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void put_file(const std::string& file, const std::string& bytes) {
  std::ofstream stream(file, std::ios::binary);
  stream << bytes;
  check(stream.good(), file + " can't be written");
}

inline void overwrite(const std::string& file, uint64_t offset, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream << bytes;
  check(stream.good(), file + " can't be changed");
}

// Flips the lowest bit of the byte at `offset`.
inline void flip(const std::string& file, uint64_t offset) {
  std::ifstream stream(file, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  overwrite(file, offset, {static_cast<char>(stream.get() ^ 1)});
}

// Returns the paths of a directory's entries, sorted; none if the directory doesn't exist.
inline std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Returns the bytes of a directory's files, except files that are removed meanwhile.
inline uint64_t bytes_in(const std::string& directory) {
  uint64_t bytes = 0;
  for (const std::string& path : files_in(directory)) {
    std::error_code gone;
    const uint64_t size = std::filesystem::file_size(path, gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

}  // namespace embstore
