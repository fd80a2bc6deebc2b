#include "tiers/leveldb/shared_leveldb.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore {
namespace {

struct OpenDatabase {
  OpenDatabase(const std::string& path, const RowLayout& row_layout, const LevelDbOptions& options)
      : layout(row_layout), database(path, row_layout, options) {}

  const RowLayout layout;
  LevelDbDatabase database;
  std::set<std::string> tables;
  uint32_t next_number = 0;
};

struct OpenDatabases {
  Mutex mutex;  // held while a database is opened or closed, too
  std::map<std::string, std::unique_ptr<OpenDatabase>> by_directory GUARDED_BY(mutex);
};

OpenDatabases& open_databases() { return ProcessLocal<OpenDatabases>::get(); }

std::string in_one_spelling(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

}  // namespace

SharedLevelDb::SharedLevelDb(const std::string& path, const std::string& table_name, const RowLayout& layout,
                             const LevelDbOptions& options)
    : directory_(in_one_spelling(path)), table_name_(table_name) {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const auto found = databases.by_directory.find(directory_);
  if (found == databases.by_directory.end()) {
    auto made = std::make_unique<OpenDatabase>(path, layout, options);
    made->tables.insert(table_name);
    database_ = &made->database;
    number_ = made->next_number++;
    databases.by_directory.emplace(directory_, std::move(made));
    return;
  }
  OpenDatabase& open = *found->second;
  const bool same_rows = open.layout.dim() == layout.dim() && open.layout.slot_count() == layout.slot_count();
  if (!same_rows || open.tables.contains(table_name)) {
    throw InUseError(path);
  }
  number_ = open.next_number++;
  open.tables.insert(table_name);
  database_ = &open.database;
}

SharedLevelDb::~SharedLevelDb() {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const auto found = databases.by_directory.find(directory_);
  if (found == databases.by_directory.end()) return;  // inherited from the process that forked this one
  found->second->tables.erase(table_name_);
  if (found->second->tables.empty()) databases.by_directory.erase(found);
}

size_t SharedLevelDb::table_count() const {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const auto found = databases.by_directory.find(directory_);
  return found == databases.by_directory.end() ? 1 : found->second->tables.size();
}

}  // namespace embstore
