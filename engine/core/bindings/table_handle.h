// A table as Python holds it: refuses itself to a process that only inherited it, and ends it without the
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
  // device_names: of the device that each tier is paced as on, if any.
  TableHandle(const TableSpec& spec, std::vector<std::optional<std::string>> device_names);
  // Closes the table, which may take long, while other Python threads go on. In a forked child it does
  // nothing: memory, files and threads are the parent's.
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

  // In a forked child it does nothing.
  void close();

 private:
  [[noreturn]] void refuse() const;

  const std::string name_;
  const std::vector<std::optional<std::string>> device_names_;
  const ForkGeneration made_in_ = fork_generation();
  std::unique_ptr<Table> table_;
};

// `count`: of a look-up that isn't for training, whether it serves.
inline LookUpFor purpose_of(bool train, bool count) {
  if (train) return LookUpFor::kTraining;
  return count ? LookUpFor::kServing : LookUpFor::kEvaluation;
}

}  // namespace embstore
