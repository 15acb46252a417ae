// farrow::MemoryPool: an arrow::MemoryPool that allocates in a Farrow region.
//
// Header only; link with libfarrow and libarrow. Other processes can map its buffers, so
// farrow_put_stream() and farrow_put_array() copy none of them.
//
// As with every pool of Arrow, each buffer keeps a bare pointer to its pool: the pool must
// outlive its buffers. The client handle need not: memory in use keeps the connection open.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "arrow/memory_pool.h"
#include "arrow/result.h"
#include "arrow/status.h"
#include "farrow/farrow.h"

namespace farrow {

// The Arrow status of Farrow's last error in this thread.
inline arrow::Status ToArrowStatus(FarrowStatus status) {
  const char* text = farrow_last_error();
  switch (status) {
    case FARROW_OK:
      return arrow::Status::OK();
    case FARROW_NOT_FOUND:
      return arrow::Status::KeyError(text);
    case FARROW_ALREADY_EXISTS:
      return arrow::Status::AlreadyExists(text);
    case FARROW_OUT_OF_MEMORY:
      return arrow::Status::OutOfMemory(text);
    case FARROW_TOO_MANY:
    case FARROW_QUOTA_EXCEEDED:
      return arrow::Status::CapacityError(text);
    case FARROW_INVALID_ARGUMENT:
    case FARROW_INVALID_DESCRIPTOR:
      return arrow::Status::Invalid(text);
    default:
      return arrow::Status::IOError(text);
  }
}

// Thread-safe. If the region is full, strict pools return OutOfMemory. Other pools allocate from
// `spill`, because parts of Arrow (its CSV reader) abort the process when a pool fails.
class MemoryPool final : public arrow::MemoryPool {
 public:
  // Takes over `handle`; `spill` must outlive the pool.
  explicit MemoryPool(FarrowPool* handle,
                      arrow::MemoryPool* spill = arrow::default_memory_pool())
      : handle_(handle), spill_(spill), strict_(farrow_pool_is_strict(handle) != 0) {}

  static arrow::Result<std::unique_ptr<MemoryPool>> Make(FarrowClient* client,
                                                         bool strict = false) {
    FarrowPool* handle = nullptr;
    if (auto status = farrow_pool_open(client, strict ? 1 : 0, &handle); status != FARROW_OK) {
      return ToArrowStatus(status);
    }
    return std::make_unique<MemoryPool>(handle);
  }

  // Reserves room for `size` bytes of buffers now, all of it or none. Without it the pool takes
  // only free memory, and no object is evicted for it.
  arrow::Status Expect(int64_t size) {
    if (size < 0) return arrow::Status::Invalid("expected ", size, " bytes");
    if (auto status = farrow_pool_expect(handle_, U(size)); status != FARROW_OK) {
      return ToArrowStatus(status);
    }
    return arrow::Status::OK();
  }

  ~MemoryPool() override { farrow_pool_close(handle_); }

  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  using arrow::MemoryPool::Allocate;
  using arrow::MemoryPool::Free;
  using arrow::MemoryPool::Reallocate;

  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    if (size < 0) return arrow::Status::Invalid("asked for ", size, " bytes");
    if (size == 0) {
      *out = Nothing();
      return arrow::Status::OK();
    }
    uint8_t* data = farrow_pool_allocate(handle_, U(size), U(alignment));
    if (data == nullptr) {
      if (strict_) return Full(size);
      ARROW_RETURN_NOT_OK(spill_->Allocate(size, alignment, &data));
      farrow_pool_note_spill(handle_, U(size));
    }
    *out = data;
    stats_.DidAllocateBytes(size);
    return arrow::Status::OK();
  }

  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment,
                           uint8_t** data) override {
    if (new_size < 0) return arrow::Status::Invalid("asked for ", new_size, " bytes");
    if (*data == Nothing()) return Allocate(new_size, alignment, data);
    if (new_size == 0) {
      Free(*data, old_size, alignment);
      *data = Nothing();
      return arrow::Status::OK();
    }
    if (!farrow_pool_contains(handle_, *data)) {  // already outside the region
      ARROW_RETURN_NOT_OK(spill_->Reallocate(old_size, new_size, alignment, data));
    } else if (uint8_t* moved = farrow_pool_reallocate(handle_, *data, U(old_size), U(new_size),
                                                       U(alignment))) {
      *data = moved;
    } else if (strict_) {
      return Full(new_size);
    } else {
      ARROW_RETURN_NOT_OK(MoveOut(old_size, new_size, alignment, data));
    }
    stats_.DidReallocateBytes(old_size, new_size);
    return arrow::Status::OK();
  }

  void Free(uint8_t* data, int64_t size, int64_t alignment) override {
    if (data == nullptr || data == Nothing()) return;
    if (farrow_pool_contains(handle_, data)) {
      farrow_pool_free(handle_, data, U(size), U(alignment));
    } else {
      spill_->Free(data, size, alignment);
    }
    stats_.DidFreeBytes(size);
  }

  int64_t bytes_allocated() const override { return stats_.bytes_allocated(); }
  int64_t max_memory() const override { return stats_.max_memory(); }
  int64_t total_bytes_allocated() const override { return stats_.total_bytes_allocated(); }
  int64_t num_allocations() const override { return stats_.num_allocations(); }
  std::string backend_name() const override { return "farrow"; }

  // Whether an address is in the region.
  bool Contains(const void* data) const { return farrow_pool_contains(handle_, data) != 0; }

 private:
  static uint64_t U(int64_t size) { return static_cast<uint64_t>(size); }

  // The result of an allocation of 0 bytes: one fixed address, aligned to 64 bytes.
  static uint8_t* Nothing() {
    alignas(64) static uint8_t nothing[64];
    return nothing;
  }

  static arrow::Status Full(int64_t size) {
    return arrow::Status::OutOfMemory("the Farrow region has no room for ", size,
                                      " bytes in one piece, or the client of this pool has ended");
  }

  arrow::Status MoveOut(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** data) {
    uint8_t* outside = nullptr;
    ARROW_RETURN_NOT_OK(spill_->Allocate(new_size, alignment, &outside));
    std::memcpy(outside, *data, static_cast<size_t>(std::min(old_size, new_size)));
    farrow_pool_note_spill(handle_, U(new_size));
    farrow_pool_free(handle_, *data, U(old_size), U(alignment));
    *data = outside;
    return arrow::Status::OK();
  }

  FarrowPool* const handle_;
  arrow::MemoryPool* const spill_;
  const bool strict_;
  arrow::internal::MemoryPoolStats stats_;
};

}  // namespace farrow
