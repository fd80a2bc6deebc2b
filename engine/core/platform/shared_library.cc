#include "platform/shared_library.h"

#include <dlfcn.h>

#include "errors/error.h"

namespace embstore {

SharedLibrary::SharedLibrary(std::string soname, const InstallAdvice& advice)
    : soname_(std::move(soname)), handle_(dlopen(soname_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw Error(ErrorKind::kMissingLibrary, soname_ + " can't be loaded (" + dlerror() + "); " + advice.text);
  }
}

void* SharedLibrary::find(const char* symbol) const {
  void* address = dlsym(handle_, symbol);
  if (address == nullptr) {
    throw Error(ErrorKind::kMissingLibrary,
                soname_ + " has no symbol " + symbol + "; install a newer version of it");
  }
  return address;
}

}  // namespace embstore
