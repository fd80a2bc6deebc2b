// The manifests of a table: a file for each of its checkpoints, which says where the checkpoint's rows are, in every durable
// tier, and what the table was beside its rows. A checkpoint is there when its manifest has its name.
//
// engine/FORMAT.md, section LOG, has the bytes, and why a power cut leaves a checkpoint whole or not there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/file_calls.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/identity.h"

namespace embstore::log {

using CheckpointId = std::array<uint8_t, 16>;

// What the table was, beside its rows.
struct TableMoment {
  int64_t apply_count = 0;
  double beta1_power = 0;
  double beta2_power = 0;
  double learning_rate = 0;
  uint64_t clock = 0;  // of rows' stamps
  bool operator==(const TableMoment&) const = default;
};

struct Manifest {
  uint64_t number = 0;  // ascending in a table
  CheckpointId id{};    // drawn at random by whoever began the checkpoint
  TableMoment moment;
  std::vector<std::vector<ExtentRows>> tiers;  // in the order of the durable tiers, the upper first

  uint64_t rows() const;
};

// Not thread-safe.
class Manifests {
 public:
  // Files are named `prefix` and the number of the checkpoint. Nothing is read or changed yet.
  Manifests(std::string prefix, files::FileCalls& calls);

  // Those that are there, ascending; takes their uuid for the table's, or draws one where there are none. Throws, naming the
  // file, Error(kStorage) where one is damaged, of another format version, or of several tables; Error(kInvalidArgument)
  // where it is of another variable. Changes nothing.
  std::vector<Manifest> load(TableIdentity& table) const;
  // Removes what writes that died have left.
  void remove_unfinished() const;

  // The manifest is durable when this returns. When it throws Error(kStorage), the manifest may be on the medium, and isn't for
  // certain only after remove(). REQUIRES: all that it names is on its medium.
  void write(const Manifest& manifest, const TableIdentity& table) const;
  // The manifest is certainly not on the medium when this returns. Throws Error(kStorage); then it may be there or not.
  void remove(uint64_t number) const;

  std::string path_of(uint64_t number) const;

 private:
  std::map<uint64_t, std::string> find(bool unfinished) const;  // paths by number

  const std::string prefix_;
  const std::string directory_;  // of the manifests
  files::FileCalls& calls_;
};

}  // namespace embstore::log
