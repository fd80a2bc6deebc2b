// What keeps a LevelDB database openable where the power goes while LevelDB opens it.
//
// Opening, LevelDB writes a new manifest, renames CURRENT to name it, and removes the old one, without bringing the
// rename to the medium in between. A file system that loses the rename, and not the removal, leaves a CURRENT that
// names nothing.
//
// A change of what files there are is a record at the manifest's end. LevelDB hands it to the system before it syncs
// the directory with the new files' names, and then syncs it. So the last record may be torn, where LevelDB refuses all
// of the manifest, or whole and name files that are lost, where it does too. Every record before the last is synced, and
// files go only when what made them needless is: without the last one the database is what was durable.
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

// Where LevelDB misses files: takes the manifest's last record out. False, and nothing has changed, where there's no other.
// Throws Error(kStorage). REQUIRES: the manifest was kept.
bool take_last_change_out_of_leveldb_manifest(const std::string& path);
// The manifest is as it was kept.
void put_leveldb_manifest_back(const std::string& path);

// How many bytes of a LevelDB log (manifests are logs) are whole records, before the first that isn't; and where the
// last of them begins.
struct LevelDbLogExtent {
  size_t whole_bytes;
  size_t last_begins;
};
LevelDbLogExtent extent_of_leveldb_log(std::string_view log);

}  // namespace embstore
