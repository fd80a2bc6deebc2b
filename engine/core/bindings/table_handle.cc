#include "bindings/table_handle.h"

#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/gil_released.h"
#include "errors/error.h"

namespace embstore {
namespace {

// Returns whether the interpreter is ending: it then ends threads that wait for its lock.
bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

TableHandle::TableHandle(const TableSpec& spec, std::vector<std::optional<std::string>> device_names)
    : name_(spec.name), device_names_(std::move(device_names)), table_(std::make_unique<Table>(spec)) {}

TableHandle::~TableHandle() {
  if (inherited(made_in_)) {
    static_cast<void>(table_.release());
    return;
  }
  if (interpreter_ends()) return;
  const GilReleased release;
  table_.reset();
}

void TableHandle::close() {
  if (!inherited(made_in_)) table_->close();
}

void TableHandle::refuse() const {
  throw Error(ErrorKind::kForked,
              name_ +
                  ": belongs to the process that this one was forked from; open it in the worker, or start "
                  "workers by spawn");
}

}  // namespace embstore
