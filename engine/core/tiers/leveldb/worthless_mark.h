// The file NO-CHECKPOINT in a database's directory: while it's there, nothing in the database was ever promised to
// anybody. So a database that was being made or removed when the power went can be told from one that is damaged.
#pragma once

#include <string>

namespace embstore {

class WorthlessMark {
 public:
  static constexpr const char* kName = "NO-CHECKPOINT";

  // In the directory `path`.
  explicit WorthlessMark(std::string path) : path_(std::move(path)) {}

  bool is_there() const;
  // Makes the directory too, where there's none; both last. Throws Error(kStorage).
  void put() const;
  // It's gone for good when this returns. Throws Error(kStorage); may be called where there's none.
  void remove() const;

 private:
  const std::string path_;
};

}  // namespace embstore
