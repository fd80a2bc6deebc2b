#include "memory/numa_nodes.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "errors/error.h"

namespace embstore {
namespace {

constexpr auto kMaskBits = static_cast<unsigned long>(kMaxNumaNodes);

std::vector<int> nodes_by_policy(void* address, unsigned long what) {
  NumaMask mask;
  int mode = 0;
  if (syscall(SYS_get_mempolicy, &mode, mask.words, kMaskBits, address, what) != 0) return {};
  return mask.nodes();
}

}  // namespace

std::vector<int> NumaMask::nodes() const {
  std::vector<int> found;
  for (int node = 0; node < kMaxNumaNodes; ++node) {
    if ((words[node / kWordBits] >> (node % kWordBits) & 1) != 0) found.push_back(node);
  }
  return found;
}

std::vector<int> allowed_nodes() { return nodes_by_policy(nullptr, MPOL_F_MEMS_ALLOWED); }

std::vector<int> nodes_of_own_policy() { return nodes_by_policy(nullptr, 0); }

std::vector<int> bound_nodes(void* address) { return nodes_by_policy(address, MPOL_F_ADDR); }

void bind_to_nodes(void* memory, size_t size_bytes, const std::vector<int>& nodes) {
  NumaMask mask;
  for (const int node : nodes) mask.words[node / NumaMask::kWordBits] |= 1UL << (node % NumaMask::kWordBits);
  // The kernel uses one bit less than it is told.
  if (syscall(SYS_mbind, memory, size_bytes, MPOL_BIND, mask.words, kMaskBits + 1, 0UL) == 0) return;
  throw Error(ErrorKind::kStorage, "can't bind " + std::to_string(size_bytes) + " bytes to NUMA node " +
                                       names_of_nodes(nodes) + ": " + std::strerror(errno));
}

uint64_t node_free_bytes(int node) {
  std::ifstream meminfo("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
  std::string word;
  while (meminfo >> word) {
    uint64_t kilobytes = 0;
    if (word == "MemFree:" && meminfo >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

std::string names_of_nodes(const std::vector<int>& nodes) {
  std::string names;
  for (const int node : nodes) names.append(names.empty() ? "" : ",").append(std::to_string(node));
  return names;
}

}  // namespace embstore
