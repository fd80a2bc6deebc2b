#include "threads/safe_point.h"

namespace embstore {
namespace {

thread_local void (*at_each)() noexcept = nullptr;

}  // namespace

void at_safe_points(void (*work)() noexcept) { at_each = work; }

void safe_point() noexcept {
  if (at_each != nullptr) [[unlikely]]
    at_each();
}

}  // namespace embstore
