// The one place where native errors become Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace embstore {

// Translates every Error that leaves a call from Python into the class of embstore.errors for its kind. Each
// of the engine's Python modules calls this when it is imported.
void translate_errors();

// Returns the Python exception for a native one, or None if `exception` is null.
nanobind::object python_error_of(const std::exception_ptr& exception);

}  // namespace embstore
