#include "access/shared_medium.h"

#include <map>

#include "threads/mutex.h"

namespace embstore {
namespace {

struct Media {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<SharedMedium>> by_name GUARDED_BY(mutex);
};

}  // namespace

std::shared_ptr<SharedMedium> SharedMedium::named(const std::string& name) {
  static Media& media = *new Media;  // tables may outlive what main() leaves behind
  const MutexLock lock(media.mutex);
  std::erase_if(media.by_name, [](const auto& medium) { return medium.second.expired(); });
  std::weak_ptr<SharedMedium>& known = media.by_name[name];
  std::shared_ptr<SharedMedium> medium = known.lock();
  if (medium == nullptr) known = medium = std::make_shared<SharedMedium>();
  return medium;
}

}  // namespace embstore
