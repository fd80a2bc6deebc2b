#include "keep/checkpoint/block_output.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "platform/crc32c.h"

namespace embstore::checkpoint {

std::byte* Block::extend(size_t bytes) {
  const size_t at = end();
  payload_bytes_ += bytes;
  if (end() > memory_->size()) {
    auto longer = std::make_unique<Memory>(medium::round_up_to_block(end()));
    std::memcpy(longer->data() + begin_, memory_->data() + begin_, at - begin_);
    memory_ = std::move(longer);
  }
  return memory_->data() + at;
}

BlockOutput::BlockOutput(std::string path, files::FileCalls& calls, const FileHeader& header)
    : calls_(calls),
      file_(calls, std::move(path), O_RDWR | O_CREAT | O_EXCL, {.for_the_medium = true, .mode = 0666}),
      end_(sizeof header),
      offset_(sizeof header),
      checksum_(crc32c(&header, sizeof header)) {
  std::memcpy(unfinished_.data(), &header, sizeof header);
  spare_.reserve(kMaxBlocks);  // so that the thread can give a block back without allocating
}

BlockOutput::~BlockOutput() {
  if (!thread_.joinable()) return;
  if (inherited(made_in_)) {  // a child has no such thread
    thread_.detach();
    return;
  }
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    if (error_ == nullptr && queue_.size() > 1) queue_.resize(1);
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<Block> BlockOutput::take() {
  std::unique_ptr<Block> block;
  {
    const MutexLock lock(mutex_);
    while (error_ == nullptr && spare_.empty() && blocks_ == kMaxBlocks) changed_.wait(mutex_);
    rethrow();
    if (!spare_.empty()) {
      block = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (block == nullptr) {
    block = std::make_unique<Block>();
    ++blocks_;
  }
  block->begin_ = end_ % medium::kBlockBytes;
  block->payload_bytes_ = 0;
  block->count = 0;
  return block;
}

void BlockOutput::put(std::unique_ptr<Block> block) {
  end_ += block->end() - block->begin_;
  if (!thread_.joinable() && block->payload_bytes() >= kLargeBlock) start_thread();
  if (!thread_.joinable()) {
    write(*block);
    const MutexLock lock(mutex_);
    spare_.push_back(std::move(block));
    return;
  }
  {
    const MutexLock lock(mutex_);
    rethrow();
    queue_.push_back(std::move(block));
  }
  changed_.notify_all();
}

void BlockOutput::finish() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
    const MutexLock lock(mutex_);
    rethrow();
  }
  if (written_ < offset_) {
    file_.write_at(unfinished_.data() + written_ % medium::kBlockBytes, offset_ - written_, written_);
    written_ = offset_;
  }
  file_.sync();  // the whole file, including what went past the page cache
  // Frees the blocks: outputs of other partitions go on, and all outputs are kept until the last
  // has ended.
  const MutexLock lock(mutex_);
  spare_.clear();
}

void BlockOutput::start_thread() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // The process may be at its limit of threads; the caller then writes the block itself.
  }
}

void BlockOutput::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !ended_) changed_.wait(mutex_);
    if (queue_.empty()) return;
    Block& block = *queue_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      write(block);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    spare_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    if (error != nullptr) {
      error_ = error;
      queue_.clear();
      ended_ = true;
    }
    changed_.notify_all();
  }
}

void BlockOutput::rethrow() {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void BlockOutput::write(Block& block) {
  BlockHeader header{
      .kind = block.kind,
      .count = block.count,
      .payload_bytes = block.payload_bytes_,
      .number = number_++,
      .payload_checksum = crc32c(block.payload(), block.payload_bytes_),
      .checksum = 0,
  };
  header.checksum = crc32c(&header, offsetof(BlockHeader, checksum));
  checksum_ = crc32c(&header, sizeof header, checksum_);
  std::byte* const data = block.memory_->data();
  std::memcpy(data, unfinished_.data(), block.begin_);
  std::memcpy(data + block.begin_, &header, sizeof header);

  const uint64_t start = offset_ - block.begin_;  // the place of `data` in the file
  const size_t whole = block.end() / medium::kBlockBytes * medium::kBlockBytes;
  offset_ = start + block.end();
  if (block.payload_bytes_ >= kLargeBlock && write_past_cache(data, whole, start)) {
    written_ = start + whole;
  } else {
    file_.write_at(data + (written_ - start), offset_ - written_, written_);
    written_ = offset_;
  }
  const size_t unfinished = offset_ % medium::kBlockBytes;
  std::memcpy(unfinished_.data(), data + block.end() - unfinished, unfinished);
}

bool BlockOutput::write_past_cache(const std::byte* data, size_t bytes, uint64_t at) {
  if (!may_pass_cache_) return false;
  try {
    if (!past_cache_) past_cache_.emplace(calls_, file_.path(), O_WRONLY | O_DIRECT);
    past_cache_->write_at(data, bytes, at);
    return true;
  } catch (const files::FileError& error) {
    if (error.reason() != EINVAL) throw;
    may_pass_cache_ = false;
    past_cache_.reset();
    return false;
  }
}

}  // namespace embstore::checkpoint
