// Helpers of the tests of durable tiers: rows whose content is a function of key and version.
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

// Every byte of a row is a function of its key and version, so that a torn or stale row is detected.
void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version);
// Returns the version of the row; fails unless it's a whole row of `key`.
int64_t checked_version(const RowBatch& rows, size_t i, int64_t key);

using Versions = std::map<int64_t, int64_t>;  // by key
CheckpointId id_of(uint64_t number);

// Changes the header of `file`, and updates its checksum.
void change_header(const std::string& file, const std::function<void(FileHeader&)>& change);

}  // namespace embstore::log::testing
