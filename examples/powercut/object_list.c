/* object_list POOL COUNT: appends numbers to a list in a pool of libpmemobj, each in a transaction, and prints
   each number after its transaction. `object_list POOL check OUTPUT` checks the list. */
#include <libpmemobj.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

POBJ_LAYOUT_BEGIN(numbers);
POBJ_LAYOUT_ROOT(numbers, struct list);
POBJ_LAYOUT_TOID(numbers, struct node);
POBJ_LAYOUT_END(numbers);

struct node {
  uint64_t number;
  TOID(struct node) next;
};

struct list {
  uint64_t count;
  TOID(struct node) newest;
};

static void append(PMEMobjpool* pool, TOID(struct list) list, uint64_t number) {
  TX_BEGIN(pool) {
    TX_ADD(list);
    TOID(struct node) node = TX_NEW(struct node);
    D_RW(node)->number = number;
    D_RW(node)->next = D_RO(list)->newest;
    D_RW(list)->newest = node;
    ++D_RW(list)->count;
  }
  TX_ONABORT { abort(); }
  TX_END
}

static int check(TOID(struct list) list, const char* output) {
  unsigned long long told = 0, number;
  FILE* file = fopen(output, "r");
  while (file != NULL && fscanf(file, "%llu", &number) == 1) told = number;
  if (file != NULL) fclose(file);
  uint64_t left = D_RO(list)->count;
  if (left < told) {
    printf("%llu numbers, and %llu were told\n", (unsigned long long)left, told);
    return 1;
  }
  for (TOID(struct node) at = D_RO(list)->newest; !TOID_IS_NULL(at); at = D_RO(at)->next, --left) {
    if (D_RO(at)->number == left) continue;
    printf("%llu where %llu should be\n", (unsigned long long)D_RO(at)->number, (unsigned long long)left);
    return 1;
  }
  return left == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  PMEMobjpool* pool = pmemobj_open(argv[1], POBJ_LAYOUT_NAME(numbers));
  if (pool == NULL) pool = pmemobj_create(argv[1], POBJ_LAYOUT_NAME(numbers), PMEMOBJ_MIN_POOL, 0600);
  if (pool == NULL) {
    fprintf(stderr, "%s\n", pmemobj_errormsg());
    return 1;
  }
  TOID(struct list) list = POBJ_ROOT(pool, struct list);
  if (strcmp(argv[2], "check") == 0) {
    const int result = check(list, argv[3]);
    pmemobj_close(pool);
    return result;
  }
  for (uint64_t left = strtoull(argv[2], NULL, 10); left > 0; --left) {
    append(pool, list, D_RO(list)->count + 1);
    printf("%llu\n", (unsigned long long)D_RO(list)->count);
    fflush(stdout);
  }
  pmemobj_close(pool);
  return 0;
}
