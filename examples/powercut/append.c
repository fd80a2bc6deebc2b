/* append FILE COUNT: appends records, and prints the number of each when it is durable.
   Compiled with -DFORGET_FLUSH, it forgets to flush the record before it counts it. */
#include <libpmem.h>
#include <stdio.h>
#include <stdlib.h>

#include "append_log.h"

static void append(struct append_log* log) {
  struct record* record = &log->records[log->count];
  for (int i = 0; i < WORDS; ++i) record->words[i] = word_of(log->count, i);
  record->sum = sum_of(record);
#ifndef FORGET_FLUSH
  pmem_flush(record, sizeof *record);
#endif
  pmem_drain();
  ++log->count;
  pmem_flush(&log->count, sizeof log->count);
  pmem_drain();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  struct append_log* log = pmem_map_file(argv[1], sizeof *log, PMEM_FILE_CREATE, 0600, NULL, NULL);
  if (log == NULL) {
    fprintf(stderr, "%s\n", pmem_errormsg());
    return 1;
  }
  for (int left = atoi(argv[2]); left > 0 && log->count < RECORDS; --left) {
    append(log);
    printf("%llu\n", (unsigned long long)log->count);
    fflush(stdout);
  }
  pmem_unmap(log, sizeof *log);
  return 0;
}
