// The data that a tier keeps beside a row's floats. NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore {

struct RowMeta {
  static constexpr int64_t kNeverUpdated = -1;  // the version of a row without updates
  static constexpr uint64_t kFrequencyBits = (uint64_t{1} << 48) - 1;

  uint64_t frequency : 48;
  uint64_t save_span : 16;  // of the last apply, see keep/save_spans.h
  int64_t version;

  static RowMeta of(uint64_t frequency, int64_t version, uint16_t save_span) {
    return {.frequency = frequency & kFrequencyBits, .save_span = save_span, .version = version};
  }
  void count(uint64_t occurrences, int64_t step, uint16_t span) {
    *this = of(frequency + occurrences, step, span);
  }
};
static_assert(sizeof(RowMeta) == 16);

}  // namespace embstore
