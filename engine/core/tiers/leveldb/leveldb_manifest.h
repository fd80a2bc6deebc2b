// What keeps a LevelDB database openable where the power goes while LevelDB opens it.
//
// Opening, LevelDB writes a new manifest, renames CURRENT to name it, and removes the old one, without bringing the
// rename to the medium in between. A file system that loses the rename, and not the removal, leaves a CURRENT that
// names nothing. And a manifest whose last change was under way when the power went may end in half a record, where
// LevelDB refuses all of it; every record before that one is synced, and is all that LevelDB ever said was durable.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace embstore {

// To be called before the database at the directory `path` is opened: repairs what an opening left that was cut short,
// and keeps a copy of the manifest. Throws Error(kStorage). Does nothing where another process
// has the database open. REQUIRES: this one hasn't.
void keep_leveldb_manifest(const std::string& path);
// To be called when the database is open: CURRENT lasts then, and the copy goes. Throws Error(kStorage).
void release_leveldb_manifest(const std::string& path);

// How many bytes of a LevelDB log (manifests are logs) are whole records, before the first that isn't.
size_t whole_leveldb_log_bytes(std::string_view log);

}  // namespace embstore
