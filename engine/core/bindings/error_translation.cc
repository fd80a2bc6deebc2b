#include "bindings/error_translation.h"

#include <nanobind/stl/vector.h>

#include <new>

#include "errors/error.h"

namespace nb = nanobind;

namespace embstore {
namespace {

const char* python_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "InvalidArgumentError";
    case ErrorKind::kStoreFull: return "StoreFullError";
    case ErrorKind::kMissingLibrary: return "MissingLibraryError";
    case ErrorKind::kMissingDevice: return "MissingDeviceError";
    case ErrorKind::kStorage: return "StorageError";
    case ErrorKind::kInUse: return "InUseError";
    case ErrorKind::kDamagedRows: return "DamagedRowsError";
    case ErrorKind::kDeviceLost: return "DeviceLostError";
    case ErrorKind::kForked: return "ForkedError";
    case ErrorKind::kCheckpoint: return "CheckpointError";
    case ErrorKind::kClosed: return "ClosedError";
  }
  return "EmbStoreError";
}

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const DamagedRowsError& error) {
    const nb::object type = nb::module_::import_("embstore.errors").attr(python_class(error.kind()));
    const nb::object raised = type(error.what(), error.keys());
    PyErr_SetObject(type.ptr(), raised.ptr());
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("embstore.errors").attr(python_class(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

nb::object python_error_of(const std::exception_ptr& exception) {
  if (exception == nullptr) return nb::none();
  try {
    translate(exception, nullptr);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  const nb::python_error raised;  // takes the exception that was set
  return nb::borrow(raised.value());
}

void translate_errors() { nb::register_exception_translator(translate); }

}  // namespace embstore
