// A shared library that only some storage types need. It is opened when the first such tier is made, so
// that the engine imports on a machine without it, and an error can say which package is missing.
#pragma once

#include <string>
#include <utility>

namespace embstore {

class SharedLibrary {
 public:
  // Throws Error(kMissingLibrary) which names `soname` and the Debian package that has it.
  SharedLibrary(const char* soname, const char* debian_package)
      : SharedLibrary(soname, InstallAdvice{std::string("install it: apt-get install ") + debian_package}) {}
  // The advice that the error gives for a library that no Debian package has. `soname` may then be a
  // path.
  struct InstallAdvice {
    std::string text;
  };
  SharedLibrary(std::string soname, const InstallAdvice& advice);
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  template <class Function>
  void load(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(find(symbol));
  }

 private:
  void* find(const char* symbol) const;

  std::string soname_;
  void* handle_;  // never closed: libpmem and memkind keep process-wide state
};

}  // namespace embstore
