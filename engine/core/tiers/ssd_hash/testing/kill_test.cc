#include "testing.h"
namespace embstore::ssd_hash::testing {
std::span<const Test> kill_tests() { return {}; }
}
