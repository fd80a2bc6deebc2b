// A medium that keeps what was flushed and drained, behind libpmem's calls: what a power cut would leave of the rest is
// drawn at random. And it notes what it's asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "memory/libpmem.h"

namespace embstore::medium::testing {

// What a power cut leaves whole or not at all, of any medium.
inline constexpr size_t kWordBytes = 8;

enum class Call { kWrite, kDrain, kSync };

struct Noted {
  Call call;
  std::string file;  // empty of a drain
  size_t offset;
  size_t bytes;
  bool operator==(const Noted&) const = default;
};

// One at a time; the calls may come from several threads.
class PmemMedium {
 public:
  // What is mapped while it lives is persistent memory, if `is_pmem`.
  explicit PmemMedium(bool is_pmem);
  ~PmemMedium();
  PmemMedium(const PmemMedium&) = delete;
  PmemMedium& operator=(const PmemMedium&) = delete;

  const LibPmem& calls() const;

  // What was asked for since the last time, in order.
  std::vector<Noted> take_notes();
  size_t notes_so_far() const;  // since then
  // Syncs fail with EIO from now on, or do not.
  void fail_syncs(bool fail);
  // Drains do nothing from now on, or do what they should.
  void leave_out_drains(bool leave_out);
  // Is called before every call, but for its own. REQUIRES: the calls come one at a time.
  void before_each_call(std::function<void()> call);
  // Writes the files of directory `from` that are mapped to directory `to` as a power cut now would leave them: of the words
  // of eight bytes that differ from what was drained, so many in a hundred have reached the medium.
  void cut(const std::string& from, const std::string& to, uint64_t percent, std::mt19937_64& random) const;
};

}  // namespace embstore::medium::testing
