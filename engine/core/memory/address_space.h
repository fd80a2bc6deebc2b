// The addresses of the process, which RLIMIT_AS may limit.
#pragma once

#include <cstddef>
#include <string>

namespace embstore {

// Addresses that are reserved although they may never be needed. All reservations together stay below half of
// what the limit leaves, so that tables made later find addresses too.
class ReservedAddresses {
 public:
  explicit ReservedAddresses(size_t bytes) : bytes_(0) { change_to(bytes); }
  ~ReservedAddresses() { change_to(0); }
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;

  void change_to(size_t bytes);

  // Returns how many of `wanted` bytes a range should reserve: all of them, or a share of what the limit
  // leaves.
  static size_t affordable(size_t wanted);

 private:
  size_t bytes_;
};

// Returns what an error of missing addresses says of the limit and how to raise it; empty if there is no
// limit.
std::string advice_on_address_limit();

}  // namespace embstore
