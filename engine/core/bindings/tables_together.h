// Batches of several tables in one call, without the interpreter's lock in between.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "table.h"

namespace embstore {

// What was prepared, until it's committed or aborted, which takes locks: without the interpreter's.
class PreparedHandle {
 public:
  // gradients: owns those that it refers to, where nobody else does.
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
