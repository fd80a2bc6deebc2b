/* cases FILE CASE: maps the existing FILE, stores NEW words over its OLD words in the way of CASE, and prints a
   line when that is done. */
#include <libpmem.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEW 0x2222222222222222u
#define NEWER 0x3333333333333333u

enum { WORDS_IN_LINE = 8, LINES = 512, LINE = 64 };

static volatile uint64_t* words;
static pthread_barrier_t meeting;

static void* drains(void* unused) {
  pmem_drain();
  return unused;
}

static void in_thread(void* (*work)(void*)) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, NULL);
  pthread_join(thread, NULL);
}

static void* stores_newer_and_persists(void* unused) {
  words[0] = NEWER;
  pmem_persist((void*)words, LINE);
  return unused;
}

static void* persists_while_others_store(void* unused) {
  pthread_barrier_wait(&meeting);
  for (int i = 1; i < LINES; ++i) {
    words[i * WORDS_IN_LINE] = NEW;
    pmem_persist((void*)&words[i * WORDS_IN_LINE], LINE);
  }
  return unused;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  size_t bytes = 0;
  int is_pmem = 0;
  words = pmem_map_file(argv[1], 0, 0, 0, &bytes, &is_pmem);
  if (words == NULL || bytes != LINES * LINE || !is_pmem) {
    fprintf(stderr, "%zu bytes, is_pmem %d: %s\n", bytes, is_pmem, pmem_errormsg());
    return 1;
  }
  const char* name = argv[2];
  uint64_t line[WORDS_IN_LINE];
  for (int i = 0; i < WORDS_IN_LINE; ++i) line[i] = NEW;
  if (strcmp(name, "store") == 0) {
    for (int i = 0; i < LINES * WORDS_IN_LINE; ++i) words[i] = NEW;
  } else if (strcmp(name, "flush") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
  } else if (strcmp(name, "flush-drain") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, 1);
    pmem_drain();
  } else if (strcmp(name, "persist") == 0) {
    words[0] = NEW;
    pmem_persist((void*)words, LINE);
  } else if (strcmp(name, "drain-elsewhere") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
    in_thread(drains);
  } else if (strcmp(name, "store-after-flush") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
    words[0] = NEWER;
    pmem_drain();
  } else if (strcmp(name, "older-flush-drained-last") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
    in_thread(stores_newer_and_persists);
    pmem_drain();
  } else if (strcmp(name, "store-again-and-flush") == 0) {
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
    words[0] = NEWER;
    pmem_msync((void*)words, LINE);
    words[0] = NEW;
    pmem_flush((void*)words, LINE);
    pmem_drain();
  } else if (strcmp(name, "memcpy-nodrain") == 0) {
    pmem_memcpy_nodrain((void*)words, line, LINE);
  } else if (strcmp(name, "memcpy-nodrain-drain") == 0) {
    pmem_memcpy_nodrain((void*)words, line, LINE);
    pmem_drain();
  } else if (strcmp(name, "memcpy-noflush") == 0) {
    pmem_memcpy((void*)words, line, LINE, PMEM_F_MEM_NOFLUSH);
    pmem_drain();
  } else if (strcmp(name, "memcpy") == 0) {
    pmem_memcpy((void*)words, line, LINE, 0);
  } else if (strcmp(name, "memset-persist") == 0) {
    pmem_memset_persist((void*)words, 0x22, LINE);
  } else if (strcmp(name, "msync") == 0) {
    words[0] = NEW;
    pmem_msync((void*)words, LINE);
  } else if (strcmp(name, "store-beside-threads") == 0) {
    pthread_t thread;
    pthread_barrier_init(&meeting, NULL, 2);
    pthread_create(&thread, NULL, persists_while_others_store, NULL);
    pthread_barrier_wait(&meeting);
    for (int round = 0; round < 200; ++round) {
      for (int i = 1; i < WORDS_IN_LINE; ++i) words[i] = round % 2 == 0 ? NEW : NEWER;
    }
    pthread_join(thread, NULL);
  } else if (strcmp(name, "slow") == 0 || strcmp(name, "slow-forgets") == 0) {
    for (uint64_t i = 1; i < 50; ++i) {
      words[i * WORDS_IN_LINE] = NEW;
      if (strcmp(name, "slow") == 0) pmem_persist((void*)&words[i * WORDS_IN_LINE], LINE);
      words[0] = i;
      pmem_persist((void*)words, LINE);
      usleep(200);
    }
  } else if (strcmp(name, "useless") == 0) {
    words[0] = NEW;
    pmem_persist((void*)words, LINE);  /* the first that is useful */
    pmem_persist((void*)words, LINE);  /* a useless flush, a useless drain */
    words[0] = NEWER;
    pmem_flush((void*)words, LINE);
    pmem_flush((void*)words, LINE);    /* a useless flush */
    pmem_drain();
    pmem_drain();                      /* a useless drain */
    words[0] = NEW;
    pmem_flush((void*)words, 2 * LINE); /* of two lines, one is clean */
    pmem_drain();
  } else {
    return 2;
  }
  printf("done\n");
  return 0;
}
