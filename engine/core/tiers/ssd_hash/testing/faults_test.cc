#include "testing.h"
namespace embstore::ssd_hash::testing {
std::span<const Test> fault_tests() { return {}; }
}
