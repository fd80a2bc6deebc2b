#include "gpu/emulated/emulated_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "errors/error.h"
#include "gpu/emulated/fault.h"
#include "platform/round_up.h"

namespace embstore::gpu::emulated {
namespace {

[[noreturn]] void refused(const std::string& what) {
  throw Error(ErrorKind::kStorage, "the emulated device can't " + what + ": " + std::strerror(errno));
}

std::byte* map(int file, uint64_t bytes, int protection) {
  void* const mapping = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (mapping == MAP_FAILED) refused("map " + std::to_string(bytes) + " bytes");
  return static_cast<std::byte*>(mapping);
}

void fill_with_pattern(std::byte* memory, uint64_t bytes, Draws& draws) {
  // The pattern is large as a float, out of range as an index, and its two words differ.
  const uint64_t pattern = draws.next() | 0xf000'0000'f000'0000;
  for (uint64_t i = 0; i < bytes; i += sizeof(pattern)) std::memcpy(memory + i, &pattern, sizeof(pattern));
}

std::string hexadecimal(uint64_t address) {
  char text[20];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

EmulatedMemory::EmulatedMemory(size_t bytes)
    : capacity_(round_up(bytes, kPage)), mapped_(4 * capacity_ + 1024 * kPage), valid_(mapped_ / kPage) {
  file_ = memfd_create("emulated device", MFD_CLOEXEC);
  if (file_ < 0) refused("make its memory");
  try {
    if (ftruncate(file_, static_cast<off_t>(mapped_)) != 0) refused("size its memory");
    host_mapping_ = map(file_, mapped_, PROT_NONE);
    view_ = map(file_, mapped_, PROT_READ | PROT_WRITE);
  } catch (const Error&) {
    if (host_mapping_ != nullptr) munmap(host_mapping_, mapped_);
    close(file_);
    throw;
  }
  host_base_ = reinterpret_cast<uint64_t>(host_mapping_);
  free_[0] = mapped_;
}

EmulatedMemory::~EmulatedMemory() {
  for (const auto& [address, pinned] : pinned_) {
    if (pinned.is_own) munmap(reinterpret_cast<void*>(address), round_up(pinned.bytes, kPage));
  }
  munmap(view_, mapped_);
  munmap(host_mapping_, mapped_);
  close(file_);
}

DeviceAddress EmulatedMemory::allocate(size_t bytes, Draws& draws) {
  if (bytes == 0) throw Error(ErrorKind::kInvalidArgument, "device memory of no bytes was asked for");
  const uint64_t pages = round_up(bytes, kPage);
  const uint64_t offset = pages <= capacity_ - used_ ? take_range(pages + kPage) : mapped_;
  if (offset == mapped_) {
    throw Error(ErrorKind::kStoreFull,
                "the emulated device is out of memory: " + std::to_string(bytes) +
                    " bytes were asked for, and " + std::to_string(capacity_ - used_) + " of " +
                    std::to_string(capacity_) +
                    " are free; give it more (EMBSTORE_DEVICE_MEMORY), or the tier less");
  }
  fill_with_pattern(view_ + offset, pages, draws);
  used_ += pages;
  allocated_[offset] = bytes;
  for (uint64_t at = 0; at < bytes; at += kPage) {
    valid_[(offset + at) / kPage] = static_cast<uint16_t>(std::min<uint64_t>(kPage, bytes - at));
  }
  return {host_base_ + offset};
}

void EmulatedMemory::free(DeviceAddress address) {
  const auto found = allocated_.find(address.value - host_base_);
  if (found == allocated_.end()) {
    throw Error(ErrorKind::kInvalidArgument, "device memory can't be freed: " + what_is_at(address.value));
  }
  const auto [offset, bytes] = *found;
  allocated_.erase(found);
  const uint64_t pages = round_up(bytes, kPage);
  std::fill_n(valid_.begin() + static_cast<ptrdiff_t>(offset / kPage), pages / kPage, uint16_t{0});
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(pages));
  used_ -= pages;
  give_range_back(offset, pages + kPage);
}

// Returns the offset of a free range, or mapped_ if there is none. `bytes` includes a guard page, which
// nothing may reach.
uint64_t EmulatedMemory::take_range(uint64_t bytes) {
  const auto fits = [&](const auto& range) { return range.second >= bytes; };
  auto found = std::find_if(free_.lower_bound(next_), free_.end(), fits);
  if (found == free_.end()) found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return mapped_;
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > bytes) free_[offset + bytes] = available - bytes;
  next_ = offset + bytes;
  return offset;
}

void EmulatedMemory::give_range_back(uint64_t offset, uint64_t bytes) {
  // Isn't joined with the free range that the next search begins at: its addresses would be given out again
  // at once.
  auto range = free_.emplace(offset, bytes).first;
  const auto after = std::next(range);
  if (after != free_.end() && offset + range->second == after->first && after->first != next_) {
    range->second += after->second;
    free_.erase(after);
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != offset || offset == next_) return;
  before->second += range->second;
  free_.erase(range);
}

std::string EmulatedMemory::what_is_at(uint64_t address) const {
  const std::string name = hexadecimal(address);
  if (address - host_base_ >= mapped_) return name + " is no address of the device's memory";
  const uint64_t offset = address - host_base_;
  auto after = allocated_.upper_bound(offset);
  if (after != allocated_.begin()) {
    const auto [start, bytes] = *std::prev(after);
    if (offset < start + round_up(bytes, kPage) + kPage) {
      return name + " is byte " + std::to_string(offset - start) + " of an allocation of " +
             std::to_string(bytes);
    }
  }
  return name + " is in memory that was freed, or never allocated";
}

std::byte* EmulatedMemory::reach_range(uint64_t address, size_t bytes) const {
  const uint64_t offset = address - host_base_;
  if (offset >= mapped_) {
    const auto after = pinned_.upper_bound(address);
    if (after != pinned_.begin()) {
      const auto& [start, pinned] = *std::prev(after);
      if (address + bytes <= start + pinned.bytes) return reinterpret_cast<std::byte*>(address);
    }
    throw Fault(what_is_at(address) + ", nor pinned");
  }
  const auto after = allocated_.upper_bound(offset);
  if (after != allocated_.begin()) {
    const auto [start, size] = *std::prev(after);
    if (offset + bytes <= start + size) return view_ + offset;
  }
  throw Fault(what_is_at(address) + "; " + std::to_string(bytes) + " bytes were wanted there");
}

void* EmulatedMemory::allocate_pinned(size_t bytes, Draws& draws) {
  if (bytes == 0) throw Error(ErrorKind::kInvalidArgument, "pinned memory of no bytes was asked for");
  const uint64_t pages = round_up(bytes, kPage);
  void* const memory = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) refused("pin " + std::to_string(bytes) + " bytes");
  fill_with_pattern(static_cast<std::byte*>(memory), pages, draws);
  pinned_[reinterpret_cast<uintptr_t>(memory)] = {bytes, /*is_own=*/true};
  return memory;
}

void EmulatedMemory::free_pinned(void* memory) {
  const auto found = pinned_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == pinned_.end() || !found->second.is_own)
    throw Error(ErrorKind::kInvalidArgument, "memory that isn't pinned can't be freed");
  munmap(memory, round_up(found->second.bytes, kPage));
  pinned_.erase(found);
}

void EmulatedMemory::pin(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  if (memory.empty() || address % kPage != 0 || memory.size() % kPage != 0) {
    throw Error(ErrorKind::kInvalidArgument, "memory that isn't whole pages can't be pinned");
  }
  if (is_pinned(memory.data(), memory.size())) {
    throw Error(ErrorKind::kInvalidArgument, "the memory at " + hexadecimal(address) + " is pinned already");
  }
  pinned_[address] = {memory.size(), /*is_own=*/false};
}

void EmulatedMemory::unpin(std::span<std::byte> memory) {
  const auto found = pinned_.find(reinterpret_cast<uintptr_t>(memory.data()));
  if (found == pinned_.end() || found->second.is_own) {
    throw Error(ErrorKind::kInvalidArgument, "memory that isn't pinned can't be unpinned");
  }
  pinned_.erase(found);
}

bool EmulatedMemory::is_pinned(const void* memory, size_t bytes) const {
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const auto after = pinned_.lower_bound(start + bytes);
  if (after == pinned_.begin()) return false;
  const auto& [address, pinned] = *std::prev(after);
  if (address + pinned.bytes <= start) return false;
  if (address <= start && start + bytes <= address + pinned.bytes) return true;
  throw Error(ErrorKind::kInvalidArgument, "only a part of the host's memory of a copy is pinned");
}

void EmulatedMemory::check_pinned(const void* memory, size_t bytes) const {
  const auto after = pinned_.upper_bound(reinterpret_cast<uintptr_t>(memory));
  if (after != pinned_.begin()) {
    const auto& [address, pinned] = *std::prev(after);
    if (reinterpret_cast<uintptr_t>(memory) + bytes <= address + pinned.bytes) return;
  }
  throw Fault("the host's pinned memory at " + hexadecimal(reinterpret_cast<uint64_t>(memory)) +
              " was freed");
}

}  // namespace embstore::gpu::emulated
