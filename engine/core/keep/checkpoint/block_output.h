// Writes a row file's blocks to the file, in order. Large blocks go past the page cache, by a thread of the
// output's own, so that checksums and the medium's time overlap with the gathering of rows for the next
// block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "files/file.h"
#include "keep/checkpoint/format.h"
#include "memory/huge_pages.h"
#include "platform/fork.h"
#include "threads/mutex.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::checkpoint {

// A block that is being filled: a BlockHeader, which the output completes, and its payload behind it.
class Block {
 public:
  Block() : memory_(std::make_unique<Memory>(kMemoryBytes)) {}

  size_t payload_bytes() const { return payload_bytes_; }
  const std::byte* payload() const { return memory_->data() + begin_ + sizeof(BlockHeader); }
  // Returns room for this many more bytes of payload, which may move the payload so far.
  std::byte* extend(size_t bytes);

  BlockKind kind = kEnd;
  uint32_t count = 0;

 private:
  friend class BlockOutput;
  static constexpr size_t kMemoryBytes = medium::kBlockBytes + sizeof(BlockHeader) + kBlockBytes;

  size_t end() const { return begin_ + sizeof(BlockHeader) + payload_bytes_; }

  // Comes from the system, and goes back to it: malloc would keep what a save of many partitions took, in the
  // arenas of their threads.
  using Memory = PageArray<std::byte>;
  std::unique_ptr<Memory> memory_;
  // The offset of the header in the memory: equal to the block's place in the file, modulo the medium's block
  // size.
  size_t begin_ = 0;
  size_t payload_bytes_ = 0;
};

// For one thread at a time. Errors of the output's own thread are thrown by later calls.
class BlockOutput {
 public:
  // Creates the file, which must not exist, and begins it with `header`.
  BlockOutput(std::string path, files::FileCalls& calls, const FileHeader& header);
  // Blocks may be missing from the file if finish() wasn't called.
  ~BlockOutput();
  BlockOutput(const BlockOutput&) = delete;
  BlockOutput& operator=(const BlockOutput&) = delete;

  // Returns an empty block, for the place behind all blocks that were put. Waits for the medium if that is
  // kMaxBlocks behind.
  std::unique_ptr<Block> take();
  void put(std::unique_ptr<Block> block);
  // Returns when the medium has all of the file. Called at most once.
  void finish();

  // After finish().
  uint64_t size_bytes() const { return end_; }
  uint32_t checksum() const { return checksum_; }  // of the header, and of the blocks' headers

 private:
  static constexpr size_t kMaxBlocks = 4;
  // Blocks of at least this size are worth a thread.
  static constexpr size_t kLargeBlock = kBlockBytes / 2;

  void start_thread();
  void run();
  void rethrow() REQUIRES(mutex_);
  // This and the next run in the output's thread, if there is one.
  void write(Block& block);
  // Writes whole blocks of the medium. Returns false if this file system can't do direct I/O.
  bool write_past_cache(const std::byte* data, size_t bytes, uint64_t at);

  const ForkGeneration made_in_ = fork_generation();
  files::FileCalls& calls_;
  files::File file_;
  std::optional<files::File> past_cache_;  // the same file, by O_DIRECT
  bool may_pass_cache_ = true;

  uint64_t end_;          // of the blocks that were put
  size_t blocks_ = 0;     // made so far
  uint64_t offset_;       // of the next block that is to be written
  uint64_t written_ = 0;  // bytes written: up to offset_, or to the medium's block that it is in
  uint64_t number_ = 0;
  uint32_t checksum_;
  // The bytes of the medium's block that contains offset_, up to offset_.
  std::array<std::byte, medium::kBlockBytes> unfinished_;

  Mutex mutex_;
  Condition changed_;
  std::vector<std::unique_ptr<Block>> spare_ GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Block>> queue_ GUARDED_BY(mutex_);  // the first is being written
  bool ended_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace embstore::checkpoint
