/* The declarations of libpmem that these programs need, if its header isn't installed. */
#ifndef LIBPMEM_H
#define LIBPMEM_H

#include <stddef.h>
#include <sys/types.h>

#define PMEM_FILE_CREATE (1 << 0)
#define PMEM_F_MEM_NODRAIN (1U << 0)
#define PMEM_F_MEM_NOFLUSH (1U << 5)

void* pmem_map_file(const char* path, size_t len, int flags, mode_t mode, size_t* mapped_len, int* is_pmem);
int pmem_unmap(void* addr, size_t len);
void pmem_flush(const void* addr, size_t len);
void pmem_drain(void);
void pmem_persist(const void* addr, size_t len);
int pmem_msync(const void* addr, size_t len);
void* pmem_memcpy(void* dest, const void* src, size_t len, unsigned flags);
void* pmem_memcpy_nodrain(void* dest, const void* src, size_t len);
void* pmem_memcpy_persist(void* dest, const void* src, size_t len);
void* pmem_memset_persist(void* dest, int c, size_t len);
const char* pmem_errormsg(void);

#endif
