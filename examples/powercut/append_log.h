/* An append-only log on persistent memory: records of 56 bytes with a checksum, and their number. */
#ifndef APPEND_LOG_H
#define APPEND_LOG_H

#include <stdint.h>

enum { RECORDS = 64, WORDS = 7 };

struct record {
  uint64_t words[WORDS];
  uint64_t sum;
};

struct append_log {
  uint64_t count; /* a record is in the log when it's counted */
  uint64_t padding[7];
  struct record records[RECORDS];
};

static inline uint64_t word_of(uint64_t number, int at) { return (number + 1) * 1000003u + (uint64_t)at; }

static inline uint64_t sum_of(const struct record* record) {
  uint64_t sum = 14695981039346656037u;
  for (int i = 0; i < WORDS; ++i) sum = (sum ^ record->words[i]) * 1099511628211u;
  return sum;
}

#endif
