#include "memory/address_space.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

namespace embstore {
namespace {

// All ranges together may reserve half of the addresses that would be free without them. A range gets an
// eighth of what is left of the first half of that; the second half is for many ranges that get kMinShare
// each.
constexpr size_t kShares = 8;
constexpr size_t kMinShare = size_t{8} << 20;

std::atomic<size_t> reserved_in_all{0};

std::optional<size_t> address_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// Returns the bytes that the system counts against the limit.
size_t addresses_in_use() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                             std::fclose);
  size_t pages = 0;
  if (file == nullptr || std::fscanf(file.get(), "%zu", &pages) != 1) return 0;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t difference_or_zero(size_t from, size_t bytes) { return from - std::min(from, bytes); }

}  // namespace

void ReservedAddresses::change_to(size_t bytes) {
  reserved_in_all.fetch_add(bytes - bytes_);  // modulo 2^64
  bytes_ = bytes;
}

size_t ReservedAddresses::affordable(size_t wanted) {
  const std::optional<size_t> limit = address_limit();
  if (!limit) return wanted;
  const size_t reserved = reserved_in_all.load();
  const size_t free_without_them =
      difference_or_zero(*limit, difference_or_zero(addresses_in_use(), reserved));
  const size_t large_share = difference_or_zero(free_without_them / 4, reserved) / kShares;
  const size_t small_share = std::min(kMinShare, difference_or_zero(free_without_them / 2, reserved));
  return std::min(wanted, std::max(large_share, small_share));
}

std::string advice_on_address_limit() {
  const std::optional<size_t> limit = address_limit();
  if (!limit) return "";
  return "; the process may have " + std::to_string(*limit) + " bytes of addresses (RLIMIT_AS) and uses " +
         std::to_string(addresses_in_use()) + ": raise that limit (ulimit -v)";
}

}  // namespace embstore
