// Finds races: two accesses to one element, at least one of them a write, that nothing orders. They are of
// different threads, no barrier lies between them, and they aren't both atomic. Such a kernel is wrong on a
// GPU, whatever schedule was drawn here.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string>
#include <unordered_map>

#include "gpu/kernels/emulated_language.h"

namespace embstore::gpu::emulated {

class Races {
 public:
  struct Accessor {
    uint32_t block = 0xffffffff;
    uint32_t thread = 0;
    uint32_t phase = 0;  // number of barriers that its block had passed
  };

  // Notes the access. Returns a description of an access that races with it; empty if there is none.
  std::string note(const void* element, Access access, const Accessor& by) {
    History& history = histories_[element];
    const Accessor* other = nullptr;
    const char* what = "written";
    if (unordered(history.write, by)) other = &history.write;
    if (access != Access::kAtomic) find(history.atomics, by, "changed atomically", other, what);
    if (access != Access::kRead) find(history.reads, by, "read", other, what);
    const Accessor raced = other == nullptr ? Accessor() : *other;  // before it is overwritten
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
  static bool is_none(const Accessor& by) { return by.block == Accessor().block; }
  static bool unordered(const Accessor& before, const Accessor& now) {
    if (is_none(before)) return false;
    if (before.block != now.block) return true;
    return before.thread != now.thread && before.phase == now.phase;
  }

  // Two accesses are enough: they are of different threads, so a later access that races with any noted one
  // races with one of these.
  struct Two {
    Accessor first;
    Accessor second;
  };
  struct History {
    Accessor write;
    Two reads;
    Two atomics;
  };

  static void find(const Two& two, const Accessor& by, const char* what_they_did, const Accessor*& other,
                   const char*& what) {
    for (const Accessor* before : {&two.first, &two.second}) {
      if (other != nullptr || !unordered(*before, by)) continue;
      other = before;
      what = what_they_did;
    }
  }
  static void add(Two& two, const Accessor& by) {
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
