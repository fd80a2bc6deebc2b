// A table that Python owns. It refuses calls in a forked child, and closes the table without the
// interpreter's lock.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/fork.h"
#include "table.h"

namespace embstore {

class TableHandle {
 public:
  // device_names: for each tier the name of the device whose speed it is paced to, if any.
  TableHandle(const TableSpec& spec, std::vector<std::optional<std::string>> device_names);
  // Closes the table, which may take long, while other Python threads run. Does nothing in a forked child:
  // memory, files and threads belong to the parent.
  ~TableHandle();
  TableHandle(const TableHandle&) = delete;
  TableHandle& operator=(const TableHandle&) = delete;

  // Throws Error(kForked) in a forked child, before any lock is touched.
  Table& table() const {
    if (inherited(made_in_)) [[unlikely]]
      refuse();
    return *table_;
  }
  Table* operator->() const { return &table(); }

  const std::vector<std::optional<std::string>>& device_names() const { return device_names_; }

  // Does nothing in a forked child.
  void close();

 private:
  [[noreturn]] void refuse() const;

  const std::string name_;
  const std::vector<std::optional<std::string>> device_names_;
  const ForkGeneration made_in_ = fork_generation();
  std::unique_ptr<Table> table_;
};

// Returns the purpose of a look-up. `count`: whether a look-up that isn't for training serves, and so counts
// as accesses.
inline LookUpPurpose purpose_of(bool train, bool count) {
  if (train) return LookUpPurpose::kTraining;
  return count ? LookUpPurpose::kServing : LookUpPurpose::kEvaluation;
}

}  // namespace embstore
