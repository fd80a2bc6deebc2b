#include "testing.h"
namespace embstore::ssd_hash::testing {
std::span<const Test> thread_tests() { return {}; }
}
