// What the tests of durable tiers have in common: rows whose content follows from key and version, and files that are looked at
// and damaged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "errors/error.h"
#include "row/row_batch.h"
#include "testing/tests.h"
#include "testing/watched_calls.h"
#include "tiers/log/identity.h"
#include "tiers/log/manifest.h"

namespace embstore::log::testing {

using namespace medium;

// Every byte of a row follows from its key and version, so that a torn or stale one shows.
void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version);
// The version of the row; fails where it isn't the whole row of `key`.
int64_t checked_version(const RowBatch& rows, size_t i, int64_t key);

using Versions = std::map<int64_t, int64_t>;  // by key
CheckpointId id_of(uint64_t number);

std::string bytes_of(const std::string& file);
uint64_t bytes_in(const std::string& directory);
std::vector<std::string> files_in(const std::string& directory);  // by name
void flip(const std::string& file, uint64_t offset);              // the lowest bit of the byte there
void overwrite(const std::string& file, uint64_t offset, const std::string& bytes);
// With a checksum that fits.
void change_header(const std::string& file, const std::function<void(FileHeader&)>& change);

}  // namespace embstore::log::testing
