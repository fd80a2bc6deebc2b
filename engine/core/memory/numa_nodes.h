// The computer's NUMA nodes, and the nodes on which memory lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace embstore {

inline constexpr int kMaxNumaNodes = 1024;  // the limit of Linux

// A set of nodes in the format of the kernel and libnuma: one bit per node.
struct NumaMask {
  std::vector<int> nodes() const;

  static constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long words[kMaxNumaNodes / kWordBits] = {};
};

// Returns the nodes on which the process may have memory. Empty if the kernel knows no nodes.
std::vector<int> allowed_nodes();

// Returns the nodes that the process's own policy names, for example one set by numactl. Empty if it has
// none.
std::vector<int> nodes_of_own_policy();

// Returns the nodes to which `address` is bound. Empty if its policy names none.
std::vector<int> bound_nodes(void* address);

// Binds these whole pages, none of which is backed yet, to `nodes`. Throws Error(kStorage).
void bind_to_nodes(void* memory, size_t size_bytes, const std::vector<int>& nodes);

uint64_t node_free_bytes(int node);

// Formats nodes as "0,1".
std::string names_of_nodes(const std::vector<int>& nodes);

}  // namespace embstore
