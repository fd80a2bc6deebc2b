// mmap, mremap, mprotect, munmap, msync: for programs and libraries that map persistent memory themselves,
// such as libpmemobj.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>

#include "stand_in.h"

namespace powercut {

void* map_memory(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
  POWERCUT_HIDDEN(mmap);
  Computer& computer = Computer::get();
  constexpr int kShared = MAP_SHARED | MAP_SHARED_VALIDATE;
  // Includes read-only mappings: mprotect() may make them writable.
  const bool shares_file =
      (flags & MAP_ANONYMOUS) == 0 && (flags & kShared) != 0 && (flags & kShared) != MAP_PRIVATE;
  const bool follows = computer.active() && shares_file && computer.follows(descriptor);
  const bool covers =
      (flags & MAP_FIXED) != 0 && computer.active() && computer.mappings.may_touch(address, bytes);
  if (!follows && !covers) return hidden_call(address, bytes, protection, flags, descriptor, offset);
  const Call call(computer, "mmap", nullptr);
  MediumFile* file = follows ? computer.find(descriptor) : nullptr;
  // For the program the file is persistent memory, whatever lies below it.
  constexpr int kSync = 0x80000;  // MAP_SYNC
  if (file != nullptr && (flags & kSync) != 0) flags = (flags & ~(kSync | kShared)) | MAP_SHARED;
  void* mapped = hidden_call(address, bytes, protection, flags, descriptor, offset);
  if (mapped == MAP_FAILED) return mapped;
  computer.mappings.remove(mapped, bytes);
  if (file != nullptr) {
    if ((protection & PROT_WRITE) != 0) file->mapped = true;
    computer.mappings.add(mapped, bytes, *file, static_cast<uint64_t>(offset));
  }
  return mapped;
}

int unmap_memory(void* address, size_t bytes) {
  POWERCUT_HIDDEN(munmap);
  Computer& computer = Computer::get();
  if (!computer.active() || !computer.mappings.may_touch(address, bytes)) return hidden_call(address, bytes);
  const Call call(computer, "munmap", nullptr);
  const int result = hidden_call(address, bytes);
  if (result == 0) computer.mappings.remove(address, bytes);
  return result;
}

int sync_memory(const char* function, void* caller, void* address, size_t bytes, int flags) {
  POWERCUT_HIDDEN(msync);
  Computer& computer = Computer::get();
  if ((flags & MS_SYNC) != 0) computer.refuse_child(function, address, bytes);
  if (!computer.active() || (flags & MS_SYNC) == 0 || !computer.mappings.may_touch(address, bytes)) {
    return hidden_call(address, bytes, flags);
  }
  Call call(computer, Kind::kSync, function, caller);
  if (!call.does("sync")) return 0;
  bool useful = false;
  const std::byte* const end = static_cast<const std::byte*>(address) + bytes;
  for (const std::byte* at = computer.mappings.next(address); at != nullptr && at < end;) {
    const auto mapped = computer.mappings.find(at);
    useful = mapped->file->capture_part(mapped->offset,
                                        std::min<size_t>(mapped->bytes, static_cast<size_t>(end - at)),
                                        computer.next_sequence()) ||
             useful;
    useful = mapped->file->capture_size() || useful;
    at = computer.mappings.next(at + mapped->bytes);
  }
  call.tell_use("sync", !useful);
  return 0;
}

}  // namespace powercut

POWERCUT_EXPORT void* mmap(void* address, size_t bytes, int protection, int flags, int descriptor,
                           off_t offset) noexcept {
  return powercut::map_memory(address, bytes, protection, flags, descriptor, offset);
}
POWERCUT_EXPORT void* mmap64(void* address, size_t bytes, int protection, int flags, int descriptor,
                             off64_t offset) noexcept {
  return powercut::map_memory(address, bytes, protection, flags, descriptor, offset);
}
POWERCUT_EXPORT void* mremap(void* address, size_t bytes, size_t new_bytes, int flags, ...) noexcept {
  void* to = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    to = va_arg(arguments, void*);
    va_end(arguments);
  }
  POWERCUT_HIDDEN(mremap);
  powercut::Computer& computer = powercut::Computer::get();
  const size_t touched =
      std::max(bytes, powercut::kPage);  // with 0 bytes it maps the same pages a second time
  if (!computer.active() || !computer.mappings.may_touch(address, touched)) {
    return hidden_call(address, bytes, new_bytes, flags, to);
  }
  const powercut::Call call(computer, "mremap", nullptr);
  const auto mapped = computer.mappings.find(address);
  void* const moved = hidden_call(address, bytes, new_bytes, flags, to);
  if (moved == MAP_FAILED) return moved;
  if ((flags & MREMAP_DONTUNMAP) == 0) computer.mappings.remove(address, bytes);
  computer.mappings.remove(moved, new_bytes);
  if (mapped) computer.mappings.add(moved, new_bytes, *mapped->file, mapped->offset);
  return moved;
}
POWERCUT_EXPORT int mprotect(void* address, size_t bytes, int protection) noexcept {
  POWERCUT_HIDDEN(mprotect);
  powercut::Computer& computer = powercut::Computer::get();
  if (!computer.active() || (protection & PROT_WRITE) == 0 || !computer.mappings.may_touch(address, bytes)) {
    return hidden_call(address, bytes, protection);
  }
  const powercut::Call call(computer, "mprotect", nullptr);
  const int result = hidden_call(address, bytes, protection);
  const std::byte* const end = static_cast<const std::byte*>(address) + bytes;
  for (const std::byte* at = computer.mappings.next(address); result == 0 && at != nullptr && at < end;) {
    const auto mapped = computer.mappings.find(at);
    mapped->file->mapped = true;
    at = computer.mappings.next(at + mapped->bytes);
  }
  return result;
}
POWERCUT_EXPORT int munmap(void* address, size_t bytes) noexcept {
  return powercut::unmap_memory(address, bytes);
}
POWERCUT_EXPORT int msync(void* address, size_t bytes, int flags) {
  return powercut::sync_memory("msync", POWERCUT_CALLER, address, bytes, flags);
}
