// What the tests of durable tiers have in common: rows whose content follows from key and version.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "errors/error.h"
#include "row/row_batch.h"
#include "testing/files.h"
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

// With a checksum that fits.
void change_header(const std::string& file, const std::function<void(FileHeader&)>& change);

}  // namespace embstore::log::testing
