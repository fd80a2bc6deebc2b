// The header of a table's files, which says whose rows a file has: the first bytes of every file that
// outlives its process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "files/file_calls.h"
#include "row/row_layout.h"
#include "tiers/log/record.h"

namespace embstore::log {

using Uuid = std::array<uint8_t, 16>;
Uuid draw_uuid();

// The identity of a table, by which its files are recognised.
struct TableIdentity {
  std::string table_name;
  std::string optimizer;  // its name, which determines the optimizer slots
  RowLayout layout;
  Uuid uuid;  // random, drawn when the table has no checkpoint yet; in all files that a checkpoint needs
};

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr char kRowsMagic[8] = {'E', 'S', 'R', 'O', 'W', 'L', 'O', 'G'};
inline constexpr char kManifestMagic[8] = {'E', 'S', 'M', 'A', 'N', 'I', 'F', 'S'};

struct FileHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;
  Uuid uuid;
  uint64_t number;    // extent number in a file of records; checkpoint number in a manifest
  uint64_t capacity;  // records that the file may hold; in a manifest, bytes after the header
  uint32_t dim;
  uint32_t slot_count;  // optimizer slots
  uint32_t row_bytes;   // bytes of a row's floats, padding included
  uint32_t stride;      // bytes from one record to the next; 0 in a manifest
  uint32_t table_name_bytes;
  uint32_t optimizer_bytes;
  char table_name[1024];  // UTF-8, padded with zeros
  char optimizer[256];    // padded with zeros
  uint32_t reserved;      // 0
  uint32_t checksum;      // CRC-32C of the bytes before it
};
static_assert(sizeof(FileHeader) == 1360);

// Returns a header with its checksum. Throws Error(kInvalidArgument) if a name is too long for it.
FileHeader make_header(const char (&magic)[8], const TableIdentity& table, uint64_t number, uint64_t capacity,
                       uint32_t stride);

// Returns the first bytes of a file, with zeros if the file is shorter. Throws Error(kStorage).
FileHeader read_header(files::FileCalls& calls, const std::string& path);

// The kind of header that was read from a file that any program may have written.
enum class HeaderKind {
  kOurs,     // a whole header of this format
  kBlank,    // nothing was written, or it never reached the medium
  kTorn,     // of this format, but not whole
  kForeign,  // another program's
  kEarlier,  // of an earlier version of the engine, whose rows outlive the process
  kLater,    // of a later version
};
HeaderKind kind_of(const FileHeader& header, const char (&magic)[8]);

// Throws, naming the file, unless the header is kOurs and of this table (its uuid apart): Error(kStorage) if
// the file's bytes are wrong, Error(kInvalidArgument), with what to do, if the file is another variable's.
void check_header(const std::string& path, const FileHeader& header, const char (&magic)[8],
                  const TableIdentity& table);

// Reads the header of the file of records that a checkpoint's manifest calls extent `number`. Throws what
// read_header() and check_header() throw, and Error(kStorage) if the file is missing or is another one of
// this table.
FileHeader read_extent_header(files::FileCalls& calls, const std::string& path, const TableIdentity& table,
                              uint64_t number, size_t stride);

// "is of an earlier version …", with what to do; for errors that name a file.
extern const char* const kEarlierVersionRefusal;

}  // namespace embstore::log
