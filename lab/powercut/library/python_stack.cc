#include "python_stack.h"

#include <dlfcn.h>

#include <string>

namespace powercut {
namespace {

// Python's C interface as far as needed. Except for frames (3.9 and newer), it is the stable interface.
struct Python {
  int (*is_initialized)();
  void* (*this_thread)();
  int (*take_lock)();
  void (*return_lock)(int);
  void* (*current_frame)();
  void* (*caller)(void*);
  void* (*code)(void*);
  int (*line)(void*);
  void* (*attribute)(void*, const char*);
  const char* (*text)(void*);
  void (*keep)(void*);
  void (*let_go)(void*);
  void (*forget_error)();
  void (*error_fetch)(void**, void**, void**);
  void (*error_restore)(void*, void*, void*);

  bool found = load(is_initialized, "Py_IsInitialized") &&
               load(this_thread, "PyGILState_GetThisThreadState") && load(take_lock, "PyGILState_Ensure") &&
               load(return_lock, "PyGILState_Release") && load(current_frame, "PyEval_GetFrame") &&
               load(caller, "PyFrame_GetBack") && load(code, "PyFrame_GetCode") &&
               load(line, "PyFrame_GetLineNumber") && load(attribute, "PyObject_GetAttrString") &&
               load(text, "PyUnicode_AsUTF8") && load(keep, "Py_IncRef") && load(let_go, "Py_DecRef") &&
               load(forget_error, "PyErr_Clear") && load(error_fetch, "PyErr_Fetch") &&
               load(error_restore, "PyErr_Restore");

 private:
  template <typename Function>
  static bool load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

const Python& python() {
  static const Python calls{};
  return calls;
}

void* module_of(void* address) {
  Dl_info info{};
  return dladdr(address, &info) == 0 ? nullptr : info.dli_fbase;
}

std::string attribute(const Python& calls, void* object, const char* name) {
  void* value = calls.attribute(object, name);
  const char* text = value == nullptr ? nullptr : calls.text(value);
  std::string found = text == nullptr ? "?" : text;
  if (text == nullptr) calls.forget_error();
  if (value != nullptr) calls.let_go(value);
  return found;
}

}  // namespace

bool is_in_python(void* address) {
  static void* const interpreter =
      python().found ? module_of(reinterpret_cast<void*>(python().take_lock)) : nullptr;
  return interpreter != nullptr && module_of(address) == interpreter;
}

CallStack python_stack(size_t frames) {
  const Python& calls = python();
  CallStack stack;
  if (!calls.found || calls.is_initialized() == 0 || calls.this_thread() == nullptr) return stack;
  const int state = calls.take_lock();
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  calls.error_fetch(&type, &value, &trace);
  void* frame = calls.current_frame();
  if (frame != nullptr) calls.keep(frame);
  while (frame != nullptr && stack.size() < frames) {
    void* code = calls.code(frame);
    const std::string path = attribute(calls, code, "co_filename");
    // The frames of the import system are the same everywhere.
    if (!path.starts_with("<frozen")) {
      stack.push_back(path + ":" + std::to_string(calls.line(frame)) + " " +
                      attribute(calls, code, "co_name"));
    }
    calls.let_go(code);
    void* caller = calls.caller(frame);
    calls.let_go(frame);
    frame = caller;
  }
  if (frame != nullptr) calls.let_go(frame);
  calls.error_restore(type, value, trace);
  calls.return_lock(state);
  return stack;
}

}  // namespace powercut
