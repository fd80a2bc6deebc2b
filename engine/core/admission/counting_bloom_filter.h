// Estimated counts in fixed memory, whatever the number of keys: a counting Bloom filter (L. Fan et al.,
// "Summary Cache", IEEE/ACM Transactions on Networking 8(3), 2000) that raises only the counters that hold
// a key's estimate back (conservative update: C. Estan and G. Varghese, "New Directions in Traffic
// Measurement and Accounting", SIGCOMM 2002). An estimate is never below the true count until a counter of
// the key is as high as its type goes.
//
// It keeps no keys, hence no versions and nothing to forget: a key whose row was evicted is admitted again
// by its next update.
#pragma once

#include <cstdint>
#include <memory>

#include "admission/admission_filter.h"

namespace embstore {

// The number of counters, and of hashes (counters per key), of a filter that has `keys` keys and takes at
// most a share `false_positive_probability` of unseen keys for seen ones: k = (m / n) ln 2 = -log2 p,
// rounded, and the m at which n keys then give p, which is m = -n ln p / (ln 2)^2 for a k that needs no
// rounding (A. Broder and M. Mitzenmacher, "Network Applications of Bloom Filters", Internet Mathematics
// 1(4), 2004).
struct BloomSize {
  uint64_t counters;
  uint32_t hashes;

  static BloomSize of(double keys, double false_positive_probability);
};

// REQUIRES: spec.filter_freq > 0. Throws Error(kInvalidArgument) which names the field.
std::unique_ptr<AdmissionFilter> make_counting_bloom_filter(const BloomFilterSpec& spec, int shards);

}  // namespace embstore
