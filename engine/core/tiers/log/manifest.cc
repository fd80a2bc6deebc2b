#include "tiers/log/manifest.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "files/file.h"
#include "tiers/log/file_names.h"

namespace embstore::log {
namespace {

namespace fs = std::filesystem;

// A manifest's body: a Body; for each tier its number of extents, u64; for each extent an ExtentHeader and
// its words. It lies between the file's header and the body's CRC-32C, u32.
struct Body {
  uint8_t id[16];
  int64_t apply_count;
  double beta1_power;
  double beta2_power;
  double learning_rate;
  uint64_t clock;
  uint64_t rows;
  uint64_t tiers;
};
static_assert(sizeof(Body) == 72);

struct ExtentHeader {
  uint64_t extent;
  uint64_t capacity;
  uint64_t words;
};

class Writing {
 public:
  template <class T>
  void put(const T& value) {
    put(&value, sizeof value);
  }
  void put(const void* from, size_t count) {
    const auto* const first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Parses the body of a manifest, and never reads beyond its end.
class Reading {
 public:
  Reading(const std::string& path, std::span<const std::byte> bytes) : path_(path), rest_(bytes) {}
  template <class T>
  T take() {
    T value;
    take(&value, sizeof value);
    return value;
  }
  void take(void* to, size_t bytes) {
    if (rest_.size() < bytes) refuse(path_, "is damaged: it ends too early");
    std::copy_n(rest_.data(), bytes, static_cast<std::byte*>(to));  // `bytes` may be 0, and `to` null
    rest_ = rest_.subspan(bytes);
  }
  size_t left() const { return rest_.size(); }

 private:
  const std::string& path_;
  std::span<const std::byte> rest_;
};

std::vector<std::byte> bytes_of(const Manifest& manifest) {
  Body body{};
  std::copy(manifest.id.begin(), manifest.id.end(), body.id);
  body.apply_count = manifest.moment.apply_count;
  body.beta1_power = manifest.moment.beta1_power;
  body.beta2_power = manifest.moment.beta2_power;
  body.learning_rate = manifest.moment.learning_rate;
  body.clock = manifest.moment.clock;
  body.rows = manifest.rows();
  body.tiers = manifest.tiers.size();
  Writing bytes;
  bytes.put(body);
  for (const std::vector<ExtentRows>& extents : manifest.tiers) {
    bytes.put(uint64_t{extents.size()});
    for (const ExtentRows& extent : extents) {
      bytes.put(ExtentHeader{extent.extent, extent.capacity, extent.rows.size()});
      bytes.put(extent.rows.data(), extent.rows.size() * sizeof(uint64_t));
    }
  }
  return bytes.take();
}

Manifest read_body(const std::string& path, std::span<const std::byte> bytes) {
  Reading parts(path, bytes);
  const auto body = parts.take<Body>();
  Manifest manifest;
  std::copy(std::begin(body.id), std::end(body.id), manifest.id.begin());
  manifest.moment = {body.apply_count, body.beta1_power, body.beta2_power, body.learning_rate, body.clock};
  for (uint64_t t = 0; t < body.tiers; ++t) {
    std::vector<ExtentRows>& extents = manifest.tiers.emplace_back();
    for (auto count = parts.take<uint64_t>(); count > 0; --count) {
      const auto header = parts.take<ExtentHeader>();
      if (parts.left() / sizeof(uint64_t) < header.words) refuse(path, "is damaged: it ends too early");
      RowWords words(header.words);
      parts.take(words.data(), words.size() * sizeof(uint64_t));
      if (end_of_rows(words) > header.capacity)
        refuse(path, "is damaged: an extent can't have so many records");
      extents.push_back({header.extent, header.capacity, std::move(words)});
    }
  }
  if (parts.left() > 0 || manifest.rows() != body.rows)
    refuse(path, "is damaged: its parts don't fit together");
  return manifest;
}

Manifest read(const std::string& path, uint64_t number, TableIdentity& table, bool is_first,
              files::FileCalls& calls) {
  const files::File file(calls, path, O_RDONLY);
  FileHeader header{};
  file.read_at(&header, sizeof header, 0);
  check_header(path, header, kManifestMagic, table);
  if (is_first) table.uuid = header.uuid;
  if (header.number != number) refuse(path, "is of checkpoint " + std::to_string(header.number));
  if (header.uuid != table.uuid) refuse(path, "is of another table than the checkpoints beside it");
  const uint64_t size = file.size_bytes();
  uint32_t checksum = 0;
  if (size != kHeaderBytes + header.capacity + sizeof checksum) {
    refuse(path, "is truncated or damaged: it has " + std::to_string(size) + " bytes, not " +
                     std::to_string(kHeaderBytes + header.capacity + sizeof checksum));
  }
  std::vector<std::byte> bytes(header.capacity);
  file.read_at(bytes.data(), bytes.size(), kHeaderBytes);
  file.read_at(&checksum, sizeof checksum, kHeaderBytes + bytes.size());
  if (checksum != crc32c(bytes.data(), bytes.size())) refuse(path, "is damaged: its checksum is wrong");
  Manifest manifest = read_body(path, bytes);
  manifest.number = number;
  return manifest;
}

}  // namespace

uint64_t Manifest::rows() const {
  uint64_t rows = 0;
  for (const auto& extents : tiers) {
    for (const ExtentRows& extent : extents) rows += count_rows(extent.rows);
  }
  return rows;
}

Manifests::Manifests(std::string prefix, files::FileCalls& calls)
    : prefix_(std::move(prefix)), directory_(directory_of(prefix_)), calls_(calls) {}

std::string Manifests::path_of(uint64_t number) const { return numbered_name(prefix_, number, ""); }

std::map<uint64_t, std::string> Manifests::find(bool unfinished) const {
  std::map<uint64_t, std::string> found;
  const std::string stem = fs::path(prefix_).filename().string();
  std::error_code code;
  for (fs::directory_iterator at(directory_, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    const auto number = number_in(at->path().filename().string(), stem, unfinished ? kUnfinished : "");
    if (number) found[*number] = path;
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    refuse(directory_, "can't be listed: " + code.message());
  }
  return found;
}

std::vector<Manifest> Manifests::load(TableIdentity& table) const {
  // A killed process may have renamed or removed a manifest without syncing the directory: this load's result
  // must be durable, whether a manifest is there or not.
  if (fs::exists(directory_)) files::sync_directory(calls_, directory_);
  std::vector<Manifest> manifests;
  for (const auto& [number, path] : find(/*unfinished=*/false)) {
    manifests.push_back(read(path, number, table, manifests.empty(), calls_));
  }
  if (manifests.empty()) table.uuid = draw_uuid();
  return manifests;
}

void Manifests::remove_unfinished() const {
  for (const auto& [number, path] : find(/*unfinished=*/true)) calls_.unlink(path.c_str());
}

void Manifests::write(const Manifest& manifest, const TableIdentity& table) const {
  const std::vector<std::byte> body = bytes_of(manifest);
  const FileHeader header = make_header(kManifestMagic, table, manifest.number, body.size(), /*stride=*/0);
  std::vector<std::byte> bytes(kHeaderBytes + body.size() + sizeof(uint32_t));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + kHeaderBytes, body.data(), body.size());
  const uint32_t checksum = crc32c(body.data(), body.size());
  std::memcpy(bytes.data() + kHeaderBytes + body.size(), &checksum, sizeof checksum);

  const std::string path = path_of(manifest.number);
  const std::string unfinished = path + std::string(kUnfinished);
  files::File file(calls_, unfinished, O_RDWR | O_CREAT | O_TRUNC, {.for_the_medium = true});
  bool is_named = false;
  try {
    file.write_at(bytes.data(), bytes.size(), 0);
    file.sync();
    file.rename_to(path);
    is_named = true;
    files::sync_directory(calls_, directory_);
  } catch (...) {
    // Without a power cut before the table is opened next, the checkpoint doesn't exist.
    calls_.unlink((is_named ? path : unfinished).c_str());
    throw;
  }
}

void Manifests::remove(uint64_t number) const {
  files::remove_file(calls_, path_of(number));
  files::sync_directory(calls_, directory_);
}

}  // namespace embstore::log
