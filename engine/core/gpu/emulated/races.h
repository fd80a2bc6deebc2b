// Finds two accesses to one element of which one is a write, and which nothing orders: neither is it one thread, nor lies
// a barrier between them, nor are both atomic. Whatever order a schedule drew, such a kernel is wrong on a GPU.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string>
#include <unordered_map>

#include "gpu/kernels/emulated_language.h"

namespace embstore::gpu::emulated {

class Races {
 public:
  struct By {
    uint32_t block = 0xffffffff;
    uint32_t thread = 0;
    uint32_t phase = 0;  // how many barriers its block had passed
  };

  // Notes the access. What races with it, in words; empty if nothing does.
  std::string note(const void* element, Access access, const By& by) {
    History& history = histories_[element];
    const By* other = nullptr;
    const char* what = "written";
    if (unordered(history.write, by)) other = &history.write;
    if (access != Access::kAtomic) find(history.atomics, by, "changed atomically", other, what);
    if (access != Access::kRead) find(history.reads, by, "read", other, what);
    const By raced = other == nullptr ? By() : *other;  // before it is overwritten
    switch (access) {
      case Access::kRead: add(history.reads, by); break;
      case Access::kAtomic: add(history.atomics, by); break;
      case Access::kWrite: history.write = by;
    }
    if (other == nullptr) return {};
    const char* const now = access == Access::kRead    ? "reads"
                            : access == Access::kWrite ? "writes"
                                                       : "changes atomically";
    return std::string("a race: it ") + now + " what block " + std::to_string(raced.block) + ", thread " +
           std::to_string(raced.thread) + " has " + what + ", with no barrier in between";
  }

 private:
  static bool is_none(const By& by) { return by.block == By().block; }
  static bool unordered(const By& before, const By& now) {
    if (is_none(before)) return false;
    if (before.block != now.block) return true;
    return before.thread != now.thread && before.phase == now.phase;
  }

  // Two are enough: one of them is another thread's than that of any later access that races with some of them.
  struct Two {
    By first;
    By second;
  };
  struct History {
    By write;
    Two reads;
    Two atomics;
  };

  static void find(const Two& two, const By& by, const char* what_they_did, const By*& other,
                   const char*& what) {
    for (const By* before : {&two.first, &two.second}) {
      if (other != nullptr || !unordered(*before, by)) continue;
      other = before;
      what = what_they_did;
    }
  }
  static void add(Two& two, const By& by) {
    if (!unordered(two.first, by)) {
      two.first = by;
    } else if (!unordered(two.second, by)) {
      two.second = by;
    }
  }

  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::unordered_map<const void*, History> histories_{&memory_};
};

}  // namespace embstore::gpu::emulated
