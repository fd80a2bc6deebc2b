// Tests of memory in which arrays share huge pages: each array has its own bytes, little more memory is
// resident than is used, and a forked child can't harm it.
#include "memory/shared_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "testing/check.h"
#include "testing/child.h"
#include "testing/tests.h"

namespace embstore {
namespace {

constexpr size_t kPageBytes = 4096;

// An array in such memory, filled with a byte of its own.
struct Array {
  Array(SharedPages& pages, size_t size_bytes, uint8_t value)
      : bytes(static_cast<uint8_t*>(pages.take(size_bytes)), size_bytes), filling(value) {
    check(reinterpret_cast<uintptr_t>(bytes.data()) % 64 == 0, "an array starts within a cache line");
    check(holds(0), "memory isn't zeroed");
    std::memset(bytes.data(), value, size_bytes);
  }
  bool holds(uint8_t value) const {
    return std::all_of(bytes.begin(), bytes.end(), [value](uint8_t byte) { return byte == value; });
  }
  void give_back(SharedPages& pages) const {
    check(holds(filling), "an array was overwritten");
    pages.give_back(bytes.data(), bytes.size());
  }

  std::span<uint8_t> bytes;
  uint8_t filling;
};

// Returns how many bytes the kernel says are resident in the huge pages in which these arrays ever lay.
size_t resident_bytes(const std::set<uintptr_t>& huge_pages) {
  size_t resident = 0;
  std::vector<unsigned char> states(kHugePageBytes / kPageBytes);
  for (const uintptr_t page : huge_pages) {
    // ENOMEM means that a part is no longer mapped. An array's own part is mapped, or it couldn't be read.
    std::fill(states.begin(), states.end(), 0);
    if (mincore(reinterpret_cast<void*>(page * kHugePageBytes), kHugePageBytes, states.data()) != 0) continue;
    resident +=
        kPageBytes * static_cast<size_t>(std::count_if(states.begin(), states.end(),
                                                       [](unsigned char state) { return state & 1; }));
  }
  return resident;
}

void note_pages(const Array& array, std::set<uintptr_t>& huge_pages) {
  const auto start = reinterpret_cast<uintptr_t>(array.bytes.data());
  for (uintptr_t page = start / kHugePageBytes; page * kHugePageBytes < start + array.bytes.size(); ++page) {
    huge_pages.insert(page);
  }
}

TEST(arrays_of_any_size_that_come_and_go_have_their_own_zeroed_bytes) {
  SharedPages pages;
  std::mt19937_64 random(1);
  std::vector<Array> arrays;
  for (int i = 0; i < 1000; ++i) {
    if (arrays.size() > 20 || (random() % 3 == 0 && !arrays.empty())) {
      std::swap(arrays[random() % arrays.size()], arrays.back());
      arrays.back().give_back(pages);
      arrays.pop_back();
    } else {
      const size_t most = i % 50 == 0 ? size_t{90} << 20 : size_t{300} << 10;  // longer than one reservation
      arrays.emplace_back(pages, random() % most + 1, static_cast<uint8_t>(i % 255 + 1));
    }
  }
  for (const Array& array : arrays) array.give_back(pages);
}

TEST(arrays_that_grow_in_turn_take_hardly_more_memory_than_they_have_bytes) {
  constexpr int kArrays = 16;
  SharedPages pages;
  std::set<uintptr_t> huge_pages;
  std::vector<Array> arrays;
  double size_bytes = 40'000;
  for (int i = 0; size_bytes < 3e6; ++i, size_bytes *= 1.018) {  // by a third in a round
    arrays.emplace_back(pages, static_cast<size_t>(size_bytes), static_cast<uint8_t>(i % 255 + 1));
    note_pages(arrays.back(), huge_pages);
    if (arrays.size() <= kArrays) continue;
    arrays.front().give_back(pages);
    arrays.erase(arrays.begin());
    size_t used_bytes = 0;
    for (const Array& array : arrays) used_bytes += array.bytes.size();
    const size_t resident = resident_bytes(huge_pages);
    check(resident >= used_bytes, "memory in use isn't seen as resident");
    // The margin is for memory around the arrays in the first and the last huge page, and at the end of
    // earlier reservations.
    check(resident <= used_bytes + 4 * kHugePageBytes, "memory that was given back is resident");
  }
  for (const Array& array : arrays) array.give_back(pages);
  check(resident_bytes(huge_pages) == 0, "memory is resident that nobody has");
}

TEST(threads_share_it) {
  SharedPages pages;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pages, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<Array> arrays;
      for (int i = 0; i < 100; ++i) {
        arrays.emplace_back(pages, random() % 100'000 + 1, static_cast<uint8_t>(t + 1));
        if (arrays.size() < 5) continue;
        arrays.front().give_back(pages);
        arrays.erase(arrays.begin());
      }
      for (const Array& array : arrays) array.give_back(pages);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(a_forked_child_leaves_what_it_inherited_alone) {
  constexpr size_t kBytes = size_t{1} << 20;
  auto* const inherited = static_cast<uint8_t*>(take_shared_pages(kBytes));
  std::memset(inherited, 7, kBytes);
  in_child([inherited] {
    alarm(60);
    give_shared_pages_back(inherited, kBytes);
    auto* const own = static_cast<uint8_t*>(take_shared_pages(kBytes));
    check(own[0] == 0 && own[kBytes - 1] == 0, "a child's memory isn't zeroed");
    std::memset(own, 8, kBytes);
    give_shared_pages_back(own, kBytes);
  });
  check(inherited[0] == 7 && inherited[kBytes - 1] == 7, "a child changed its parent's memory");
  give_shared_pages_back(inherited, kBytes);
}

TEST(more_than_there_are_addresses_is_an_error_that_changes_nothing) {
  SharedPages pages;
  const Array array(pages, 100'000, 3);
  error_of(ErrorKind::kStorage, [&pages] { pages.take(size_t{1} << 47); });
  array.give_back(pages);
}

}  // namespace
}  // namespace embstore
