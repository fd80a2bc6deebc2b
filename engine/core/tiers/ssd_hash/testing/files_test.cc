#include "testing.h"
namespace embstore::ssd_hash::testing {
std::span<const Test> file_tests() { return {}; }
}
