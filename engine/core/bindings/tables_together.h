// Look-ups and updates of several tables in one call, which releases the interpreter's lock once.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "table.h"

namespace embstore {

// A prepared batch. Committing and aborting it take locks, so callers release the interpreter's lock first.
class PreparedHandle {
 public:
  // gradients: owns the gradients that the batch refers to, unless the caller does.
  explicit PreparedHandle(std::unique_ptr<Table::PreparedApply> prepared,
                          std::shared_ptr<const void> gradients = nullptr)
      : gradients_(std::move(gradients)), prepared_(std::move(prepared)) {}

  void commit(std::optional<int64_t> global_step);
  void abort();

 private:
  const std::shared_ptr<const void> gradients_;
  std::unique_ptr<Table::PreparedApply> prepared_;
};

void bind_tables_together(nanobind::module_& module);

}  // namespace embstore
