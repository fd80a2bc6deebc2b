// Releases Python's lock while the core works.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace embstore {

// In place of nanobind's: a daemon thread that comes back when the interpreter has ended is unwound by Python (before 3.14), which
// a destructor doesn't survive: the program would end by SIGABRT. Here it waits for the process's end.
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
