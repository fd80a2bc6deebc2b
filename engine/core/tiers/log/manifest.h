// The manifests of a table: a file for each of its checkpoints, which says where the checkpoint's rows are in
// every durable tier, and has the table's state beside its rows. A checkpoint exists if its manifest has its
// final name.
//
// engine/FORMAT.md, section LOG, describes the bytes, and why a power cut leaves a checkpoint either whole or
// absent.
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

// The table's state beside its rows.
struct TableMoment {
  int64_t apply_count = 0;
  double beta1_power = 0;
  double beta2_power = 0;
  double learning_rate = 0;
  uint64_t clock = 0;  // for rows' stamps
  bool operator==(const TableMoment&) const = default;
};

struct Manifest {
  uint64_t number = 0;  // ascending in a table
  CheckpointId id{};    // random, drawn by the code that began the checkpoint
  TableMoment moment;
  std::vector<std::vector<ExtentRows>> tiers;  // in the order of the durable tiers, the upper first

  uint64_t rows() const;
};

// Not thread-safe.
class Manifests {
 public:
  // A manifest's file name is `prefix` and the number of the checkpoint. Nothing is read or changed yet.
  Manifests(std::string prefix, files::FileCalls& calls);

  // Returns the manifests that exist, in ascending order, and sets the table's uuid to theirs, or draws one
  // if there are none. Throws, naming the file: Error(kStorage) if a manifest is damaged or of another format
  // version, or if they are of several tables; Error(kInvalidArgument) if one is another variable's. Changes
  // nothing.
  std::vector<Manifest> load(TableIdentity& table) const;
  // Removes the unfinished files of writes that died.
  void remove_unfinished() const;

  // Writes a manifest, which is durable when this returns. If this throws Error(kStorage), the manifest may
  // be on the medium, and is certainly gone only after remove(). REQUIRES: all that it names is on its
  // medium.
  void write(const Manifest& manifest, const TableIdentity& table) const;
  // Removes a manifest: it's certainly not on the medium when this returns. If this throws Error(kStorage),
  // it may be there or not.
  void remove(uint64_t number) const;

  std::string path_of(uint64_t number) const;

 private:
  std::map<uint64_t, std::string> find(bool unfinished) const;  // paths by number

  const std::string prefix_;
  const std::string directory_;  // where the manifests are
  files::FileCalls& calls_;
};

}  // namespace embstore::log
