// What the tests of the LevelDB tier have in common.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace embstore {

// This program itself, started anew with these arguments, since LevelDB can't be used in a forked child.
class AnotherProcess {
 public:
  explicit AnotherProcess(const std::vector<std::string>& arguments);
  // Waits for a byte that it writes; false where it is gone.
  bool answers() const;
  void end();  // by closing its stdin; fails unless it ends well

 private:
  pid_t child_ = 0;
  int stdin_ = -1;
  int stdout_ = -1;
};

// What such processes do.
int hold_a_database(
    const std::string& path);  // opens a tier, writes a byte to stdout, waits for the end of stdin
int leave_a_database(const std::string& path);  // writes a row and dies

void test_rows();

}  // namespace embstore
