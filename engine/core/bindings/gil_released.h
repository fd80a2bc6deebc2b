// Releases Python's lock while the core works.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace embstore {

// Replaces nanobind's class of this kind. If a daemon thread asks for the lock after the interpreter has
// ended, Python (before 3.14) unwinds it. With nanobind's class, that happens in a destructor and ends the
// program by SIGABRT. Here the thread waits for the end of the process.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace embstore
