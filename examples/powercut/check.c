/* check FILE OUTPUT: every counted record must be whole, and every record that was reported as durable must
   be counted. */
#include <stdio.h>
#include <stdlib.h>

#include "append_log.h"

static unsigned long long last_told(const char* path) {
  unsigned long long told = 0, number;
  FILE* file = fopen(path, "r");
  while (file != NULL && fscanf(file, "%llu", &number) == 1) told = number;
  if (file != NULL) fclose(file);
  return told;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  static struct append_log log;
  FILE* file = fopen(argv[1], "rb");
  if (file == NULL || fread(&log, 1, sizeof log, file) == 0) log.count = 0;
  if (log.count < last_told(argv[2]) || log.count > RECORDS) {
    printf("%llu records, and %llu were durable\n", (unsigned long long)log.count, last_told(argv[2]));
    return 1;
  }
  for (uint64_t i = 0; i < log.count; ++i) {
    if (log.records[i].sum == sum_of(&log.records[i]) && log.records[i].words[0] == word_of(i, 0)) continue;
    printf("record %llu of %llu is damaged\n", (unsigned long long)i, (unsigned long long)log.count);
    return 1;
  }
  return 0;
}
