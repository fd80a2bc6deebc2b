#include "access/shared_medium.h"

#include "access/process_registry.h"

namespace embstore {

std::shared_ptr<SharedMedium> SharedMedium::named(const std::string& name) {
  return ProcessRegistry<std::string, SharedMedium>::get(name,
                                                         [] { return std::make_shared<SharedMedium>(); });
}

}  // namespace embstore
