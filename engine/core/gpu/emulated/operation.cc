#include "gpu/emulated/operation.h"

#include <algorithm>
#include <cstring>

#include "gpu/emulated/fault.h"

namespace embstore::gpu::emulated {

std::byte* CopyEnd::reach(const EmulatedMemory& memory, size_t offset, size_t count) {
  switch (kind) {
    case Kind::kDevice: return memory.reach(address + offset, count);
    case Kind::kPinned: memory.check_pinned(reinterpret_cast<const void*>(address + offset), count); break;
    case Kind::kStaged: return bytes.data() + offset;
  }
  return reinterpret_cast<std::byte*>(address + offset);
}

bool CopyOperation::step() {
  constexpr size_t kMaxPieces = 4;
  if (piece_ == 0) {
    const size_t pieces = 1 + draws_.below(kMaxPieces);
    piece_ = std::max<size_t>(1, (bytes_ + pieces - 1) / pieces);
    from_behind_ = draws_.one_in(2);
  }
  const size_t count = std::min(piece_, bytes_ - done_);
  const size_t offset = from_behind_ ? bytes_ - done_ - count : done_;
  try {
    std::memcpy(to_.reach(memory_, offset, count), from_.reach(memory_, offset, count), count);
  } catch (const Fault& fault) {
    throw Fault(label() + ": " + fault.what());
  }
  done_ += count;
  return done_ < bytes_;
}

bool FillOperation::step() {
  try {
    std::memset(memory_.reach(to_.value, bytes_), value_, bytes_);
  } catch (const Fault& fault) {
    throw Fault(label() + ": " + fault.what());
  }
  return false;
}

}  // namespace embstore::gpu::emulated
