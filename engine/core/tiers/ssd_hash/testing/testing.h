// What the tests of SSDHASH have in common: checks, rows whose content follows from key and version, and
// the plainest index that a tier can be asked by.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "errors/error.h"
#include "testing/check.h"
#include "threads/mutex.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore::ssd_hash::testing {

// Fails unless `call` throws an Error of `kind` whose message has `part` in it.
template <class Call>
void check_throws(ErrorKind kind, const std::string& part, const Call& call) {
  const std::string message = error_of(kind, call);
  check(message.find(part) != std::string::npos, "\"" + part + "\" is not in: " + message);
}

// Every byte of a row follows from its key and version, so that a torn or stale one shows.
void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version);
// The version of the row; fails where it isn't the whole row of `key`.
int64_t checked_version(const RowBatch& rows, size_t i, int64_t key);

// Keys, places and versions of the rows that are in the tier.
class PlainIndex final : public Relocator {
 public:
  struct Entry {
    Slot slot;
    int64_t version;
  };
  void relocate(std::span<Relocation> rows) override;

  // Returns where the row was before.
  std::optional<Entry> put(int64_t key, Slot slot, int64_t version);
  std::optional<Entry> find(int64_t key) const;
  std::optional<Entry> take(int64_t key);  // removes it
  // Everything, keys ascending.
  std::vector<std::pair<int64_t, Entry>> all() const;
  size_t size() const;

 private:
  mutable Mutex mutex_;
  std::map<int64_t, Entry> entries_ GUARDED_BY(mutex_);
};

// Writes rows, refers to them, and erases those that they replace.
void write_rows(SsdHashTier& tier, PlainIndex& index, const RowLayout& layout, std::span<const int64_t> keys,
                int64_t version);
// Every row of the index is in the tier, whole and of its version.
void check_all(const SsdHashTier& tier, const PlainIndex& index, const RowLayout& layout);

uint64_t bytes_in(const std::string& directory);
std::vector<std::string> files_in(const std::string& directory);

// Small, so that a few thousand rows fill and compact many files.
SsdHashOptions small_files();

struct Test {
  const char* name;
  void (*run)();
};
std::span<const Test> row_tests();
std::span<const Test> file_tests();
std::span<const Test> fault_tests();
std::span<const Test> medium_tests();
std::span<const Test> descriptor_tests();
std::span<const Test> every_call_tests();
std::span<const Test> random_tests();
std::span<const Test> thread_tests();
std::span<const Test> kill_tests();
std::span<const Test> checkpoint_tests();
std::span<const Test> checkpoint_random_tests();
std::span<const Test> power_tests();

}  // namespace embstore::ssd_hash::testing
