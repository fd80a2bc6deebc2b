// What the files of tiers call the table that they belong to.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace embstore {

// Versions that placed keys by key modulo the number of partitions left this end out; so no table takes their
// rows for its own.
inline constexpr std::string_view kPlacedByHash = " by hash";

inline std::string name_in_files(const std::string& name, size_t partition_count) {
  return partition_count > 1 ? name + std::string(kPlacedByHash) : name;
}

// What such a version had for a name in files; the same where keys lie as they did.
inline std::string_view name_before_hashes(std::string_view name) {
  return name.substr(0, name.size() - (name.ends_with(kPlacedByHash) ? kPlacedByHash.size() : 0));
}

// For errors: what is wrong with the rows of such a table, and what to do.
inline constexpr const char* kPlacedByModuloRefusal =
    "is of an earlier version, which put key k into partition k modulo partition_num; with that version "
    "es.save() the variable, then remove these files, and es.restore() the save here";

}  // namespace embstore
