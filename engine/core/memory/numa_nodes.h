// The NUMA nodes of the computer, and which of them memory lies on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace embstore {

inline constexpr int kMostNumaNodes = 1024;  // of Linux

// A set of nodes as the kernel and libnuma write it: a bit for each.
struct NumaMask {
  std::vector<int> nodes() const;

  static constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long words[kMostNumaNodes / kWordBits] = {};
};

// Nodes that the process may have memory on. None where the kernel knows no nodes.
std::vector<int> allowed_nodes();

// Nodes that a policy of the process's own names, as numactl gives one. None where it has none.
std::vector<int> nodes_of_own_policy();

// Nodes that `address` is bound to. None where its policy names none.
std::vector<int> bound_nodes(void* address);

// Lets pages of these whole pages, none of which is backed yet, lie on `nodes` alone. Throws Error(kStorage).
void bind_to_nodes(void* memory, size_t size_bytes, const std::vector<int>& nodes);

uint64_t node_free_bytes(int node);

// As in 0,1.
std::string names_of_nodes(const std::vector<int>& nodes);

}  // namespace embstore
