#include "testing.h"

#include <fcntl.h>

#include <cstddef>
#include <cstring>

#include "files/file.h"
#include "platform/crc32c.h"

namespace embstore::log::testing {
namespace {

uint64_t bits_of(int64_t key, int64_t version) {
  return static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ULL ^
         static_cast<uint64_t>(version) * 0x632be59bd9b4e019ULL;
}

// Small, since a pool ranks the row by its sum with the frequency, which must fit into a rank.
uint64_t served_of(uint64_t bits) { return bits % 1000; }

}  // namespace

void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version) {
  const uint64_t bits = bits_of(key, version);
  rows.header(i) = {.key = key,
                    .frequency = bits & RowMeta::kFrequencyBits,
                    .version = version,
                    .served = served_of(bits),
                    .stamp = bits | 1,
                    .save_span = bits & 0xffff};
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    rows.row(i)[f] = static_cast<float>((bits + f * 7919) % 16000000);
  }
}

int64_t checked_version(const RowBatch& rows, size_t i, int64_t key) {
  const RowHeader& header = rows.header(i);
  const uint64_t bits = bits_of(key, header.version);
  check(header.key == key,
        [&] { return "row of key " + std::to_string(header.key) + " in place of " + std::to_string(key); });
  check(header.frequency == (bits & RowMeta::kFrequencyBits) && header.served == served_of(bits) &&
            header.stamp == (bits | 1) && header.save_span == (bits & 0xffff),
        [&] { return "the header of key " + std::to_string(key) + " is torn"; });
  bool is_whole = true;
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    is_whole &= rows.row(i)[f] == static_cast<float>((bits + f * 7919) % 16000000);
  }
  check(is_whole, [&] { return "the row of key " + std::to_string(key) + " is torn"; });
  return header.version;
}

CheckpointId id_of(uint64_t number) {
  CheckpointId id{};
  std::memcpy(id.data(), &number, sizeof number);
  id[15] = 0xee;
  return id;
}

void change_header(const std::string& file, const std::function<void(FileHeader&)>& change) {
  files::File opened(files::system_file_calls(), file, O_RDWR);
  FileHeader header{};
  opened.read_at(&header, sizeof header, 0);
  change(header);
  header.checksum = crc32c(&header, offsetof(FileHeader, checksum));
  opened.write_at(&header, sizeof header, 0);
}

}  // namespace embstore::log::testing
