// Points at which a thread that works on tables holds no lock that other threads need: there a watcher may
// hold it up.
#pragma once

namespace embstore {

// Makes this thread call `work` at each of its safe points, in place of what it called there before; null:
// nothing.
void at_safe_points(void (*work)() noexcept);

// Marks a safe point. REQUIRES: the thread holds no lock that other threads need.
void safe_point() noexcept;

// A scope that ends with a safe point.
class SafePointAtEnd {
 public:
  SafePointAtEnd() = default;
  ~SafePointAtEnd() { safe_point(); }
  SafePointAtEnd(const SafePointAtEnd&) = delete;
  SafePointAtEnd& operator=(const SafePointAtEnd&) = delete;
};

}  // namespace embstore
