// Whose rows a file has: the first bytes of every file of a table that outlives its process.
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

// What a table's files are known by.
struct TableIdentity {
  std::string table_name;
  std::string optimizer;  // its name, which says what the slots are
  RowLayout layout;
  Uuid uuid;  // drawn when the table has no checkpoint yet; all files that a checkpoint needs have it
};

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr char kRowsMagic[8] = {'E', 'S', 'R', 'O', 'W', 'L', 'O', 'G'};
inline constexpr char kManifestMagic[8] = {'E', 'S', 'M', 'A', 'N', 'I', 'F', 'S'};

struct FileHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;
  Uuid uuid;
  uint64_t number;    // of the extent, in a file of records; of the checkpoint, in a manifest
  uint64_t capacity;  // records that the file may hold; bytes that follow the header, in a manifest
  uint32_t dim;
  uint32_t slot_count;  // optimizer slots
  uint32_t row_bytes;   // of a row's floats, padding included
  uint32_t stride;      // from one record to the next; 0 in a manifest
  uint32_t table_name_bytes;
  uint32_t optimizer_bytes;
  char table_name[1024];  // UTF-8, filled up with zeros
  char optimizer[256];    // filled up with zeros
  uint32_t reserved;      // 0
  uint32_t checksum;      // CRC-32C of the bytes before it
};
static_assert(sizeof(FileHeader) == 1360);

// Throws Error(kInvalidArgument) where a name is too long for a header.
FileHeader make_header(const char (&magic)[8], const TableIdentity& table, uint64_t number, uint64_t capacity,
                       uint32_t stride);

// What a file begins with: zeros where the file is shorter. Throws Error(kStorage).
FileHeader read_header(files::FileCalls& calls, const std::string& path);

// What was read of a file that may be anybody's.
enum class HeaderIs {
  kOurs,     // a header of this format that is whole
  kBlank,    // nothing was written there, or it never reached the medium
  kTorn,     // ours, and not whole
  kForeign,  // of another program
  kEarlier,  // of an earlier version of the engine, whose rows outlive the process
  kLater,    // of a later version
};
HeaderIs kind_of(const FileHeader& header, const char (&magic)[8]);

// Throws, naming the file, unless it is kOurs and of this table (its uuid apart): Error(kStorage) for the bytes of the file,
// Error(kInvalidArgument) for a variable that is another, with what to do.
void check_header(const std::string& path, const FileHeader& header, const char (&magic)[8],
                  const TableIdentity& table);

// The header of the file of records that a checkpoint's manifest calls extent `number`. Throws as read_header() and check_header(), and
// Error(kStorage) where the file is missing or another one of this table.
FileHeader read_extent_header(files::FileCalls& calls, const std::string& path, const TableIdentity& table,
                              uint64_t number, size_t stride);

// "is of an earlier version …", with the way out; for errors that name a file.
extern const char* const kEarlierVersionRefusal;

}  // namespace embstore::log
