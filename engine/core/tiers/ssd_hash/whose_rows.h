// Whether files of SSDHASH rows are a variable's own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "errors/error.h"
#include "tiers/ssd_hash/format.h"
#include "tiers/table_name.h"

namespace embstore::ssd_hash {

// Throws Error(kStorage), which says what to do, where `variable_hash`, which was found in `path`, is of another
// variable than `wanted`.
inline void check_variable(const std::string& path, uint64_t variable_hash, const std::string& wanted) {
  if (variable_hash == hash_of_name(wanted)) return;
  if (variable_hash == hash_of_name(name_before_hashes(wanted))) {
    throw Error(ErrorKind::kStorage, path + ": " + kPlacedByModuloRefusal);
  }
  throw Error(ErrorKind::kStorage, path + ": is for rows of another variable than \"" + wanted +
                                       "\", or of another number of partitions; give each its own "
                                       "storage_path");
}

}  // namespace embstore::ssd_hash
