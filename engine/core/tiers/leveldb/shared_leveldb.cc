#include "tiers/leveldb/shared_leveldb.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "threads/mutex.h"
#include "tiers/leveldb/leveldb_checkpoint_records.h"
#include "tiers/table_name.h"

namespace embstore {
namespace {

// That which the database has noted; of a new table, the next one, which is noted.
uint32_t kept_table_number(LevelDbDatabase& database, const std::string& table_name) {
  std::optional<uint32_t> number;
  uint32_t next = 0;
  const std::string prefix = LevelDbTableRecord::key_of("");
  database.scan(prefix, [&](std::string_view key, std::string_view value) {
    const std::string name(key.substr(prefix.size()));
    const std::optional<LevelDbTableRecord> table = LevelDbTableRecord::of(name, value);
    if (!table) database.fail("is damaged: the record of its table '" + name + "' isn't whole");
    if (name == table_name) {
      number = table->number;
    } else if (name == name_before_hashes(table_name)) {
      database.fail(kPlacedByModuloRefusal);
    }
    next = std::max(next, table->number + 1);
  });
  if (number) return *number;
  const LevelDbTableRecord table{.number = next, .optimizer = ""};
  LevelDbDatabase::Batch batch = database.make_batch();
  database.put(batch, LevelDbTableRecord::key_of(table_name), table.bytes(table_name));
  database.write(batch);
  return next;
}

struct OpenDatabase {
  OpenDatabase(const std::string& path, const RowLayout& row_layout, const LevelDbOptions& options,
               LevelDbRows kind_of_rows)
      : layout(row_layout), rows(kind_of_rows), database(path, row_layout, options, kind_of_rows) {}

  uint32_t number_of(const std::string& table_name) {
    return rows == LevelDbRows::kOfTheProcess ? next_number++ : kept_table_number(database, table_name);
  }

  const RowLayout layout;
  const LevelDbRows rows;
  LevelDbDatabase database;
  std::set<std::string> tables;
  uint32_t next_number = 0;
};

struct OpenDatabases {
  Mutex mutex;  // held while a database is opened or closed, too
  // By process, since a forked one must not use what it inherited, and directory.
  std::map<std::pair<pid_t, std::string>, std::unique_ptr<OpenDatabase>> all GUARDED_BY(mutex);
};

// Never destroyed: a table may outlive the end of main().
OpenDatabases& open_databases() {
  static OpenDatabases& databases = *new OpenDatabases;
  return databases;
}

std::string in_one_spelling(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

}  // namespace

SharedLevelDb::SharedLevelDb(const std::string& path, const std::string& table_name, const RowLayout& layout,
                             const LevelDbOptions& options, LevelDbRows rows)
    : directory_(in_one_spelling(path)), table_name_(table_name) {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const std::pair key(getpid(), directory_);
  const auto found = databases.all.find(key);
  if (found == databases.all.end()) {
    auto made = std::make_unique<OpenDatabase>(path, layout, options, rows);
    made->tables.insert(table_name);
    database_ = &made->database;
    number_ = made->number_of(table_name);
    databases.all.emplace(key, std::move(made));
    return;
  }
  OpenDatabase& open = *found->second;
  const bool same_rows = open.layout.dim() == layout.dim() && open.layout.slot_count() == layout.slot_count();
  if (!same_rows || open.rows != rows || open.tables.contains(table_name)) {
    throw InUseError(path);
  }
  number_ = open.number_of(table_name);
  open.tables.insert(table_name);
  database_ = &open.database;
}

SharedLevelDb::~SharedLevelDb() {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const auto found = databases.all.find({getpid(), directory_});
  if (found == databases.all.end()) return;  // inherited from the process that forked this one
  found->second->tables.erase(table_name_);
  if (found->second->tables.empty()) databases.all.erase(found);
}

size_t SharedLevelDb::table_count() const {
  OpenDatabases& databases = open_databases();
  const MutexLock lock(databases.mutex);
  const auto found = databases.all.find({getpid(), directory_});
  return found == databases.all.end() ? 1 : found->second->tables.size();
}

}  // namespace embstore
