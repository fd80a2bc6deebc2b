// A persistent memory behind libpmem's calls that keeps only what was flushed and drained: which part of the
// rest a power cut leaves is drawn at random. It also records the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "memory/libpmem.h"

namespace embstore::medium::testing {

// The unit that a power cut leaves either whole or not at all, on any medium.
inline constexpr size_t kWordBytes = 8;

enum class Call { kWrite, kDrain, kSync };

struct Noted {
  Call call;
  std::string file;  // empty for a drain
  size_t offset;
  size_t bytes;
  bool operator==(const Noted&) const = default;
};

// Only one object may exist at a time; the calls may come from several threads.
class PmemMedium {
 public:
  // Files mapped during its life count as persistent memory if `is_pmem`.
  explicit PmemMedium(bool is_pmem);
  ~PmemMedium();
  PmemMedium(const PmemMedium&) = delete;
  PmemMedium& operator=(const PmemMedium&) = delete;

  const LibPmem& calls() const;

  // Returns the calls since the last take_notes(), in order.
  std::vector<Noted> take_notes();
  size_t notes_so_far() const;  // since the last take_notes()
  // Makes syncs fail with EIO from now on, or succeed again.
  void fail_syncs(bool fail);
  // Makes drains do nothing from now on, or work again.
  void leave_out_drains(bool leave_out);
  // Sets a function that runs before every call, except calls that it makes itself. REQUIRES: the calls come
  // one at a time.
  void before_each_call(std::function<void()> call);
  // Writes the mapped files of directory `from` to directory `to` as a power cut now would leave them: of the
  // eight-byte words that differ from what was drained, `percent` in a hundred have reached the medium.
  void cut(const std::string& from, const std::string& to, uint64_t percent, std::mt19937_64& random) const;
};

}  // namespace embstore::medium::testing
