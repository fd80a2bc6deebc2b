// The one place where native errors become Python's.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace embstore {

// Makes every Error that leaves a call of a Python module of the engine the class of embstore.errors that
// its kind says. To be called by each module, as it's imported.
void translate_errors();

// The Python exception that it becomes; None where there is none.
nanobind::object python_error_of(const std::exception_ptr& exception);

}  // namespace embstore
