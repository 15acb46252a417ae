// farrow::MemoryPool against a node: every rule of a pool. Argument: the socket.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "arrow/api.h"
#include "arrow/c/abi.h"
#include "farrow/memory_pool.hpp"

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::cerr << __FILE__ << ":" << __LINE__ << ": not " << #condition << "\n";   \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

namespace {

constexpr int64_t kHuge = int64_t{1} << 40;

bool IsAligned(const uint8_t* data, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
}

void SizesAndAlignments(farrow::MemoryPool* pool) {
  uint8_t* nothing = nullptr;
  uint8_t* other = nullptr;
  CHECK(pool->Allocate(0, &nothing).ok() && nothing != nullptr);
  CHECK(pool->Allocate(0, &other).ok() && other == nothing);
  pool->Free(nothing, 0);
  CHECK(!pool->Allocate(-1, &other).ok());
  for (int64_t alignment : {64, 128, 512, 4096}) {
    for (int64_t size : {1, 63, 64, 2047, 2048, 2049, 4096, 4097, 100'000}) {
      uint8_t* data = nullptr;
      CHECK(pool->Allocate(size, alignment, &data).ok());
      CHECK(IsAligned(data, alignment));
      CHECK(pool->Contains(data));
      std::memset(data, 0xa5, static_cast<size_t>(size));
      pool->Free(data, size, alignment);
    }
  }
  CHECK(pool->bytes_allocated() == 0);
}

// Grows, shrinks and empties one allocation at random; its first bytes must survive.
void Reallocations(farrow::MemoryPool* pool, unsigned seed) {
  std::mt19937 random(seed);
  uint8_t* data = nullptr;
  int64_t size = 0;
  CHECK(pool->Allocate(0, &data).ok());
  for (int round = 0; round < 2000; ++round) {
    const int64_t sizes[] = {0, 1, 64, 100, 2048, 3000, 4096, 65'536, 1'000'000};
    const int64_t next = sizes[random() % 9];
    const auto mark = static_cast<uint8_t>(round);
    if (size > 0) std::memset(data, mark, static_cast<size_t>(size));
    CHECK(pool->Reallocate(size, next, &data).ok());
    CHECK(data != nullptr && IsAligned(data, 64));
    for (int64_t i = 0; i < std::min(size, next); i += 61) CHECK(data[i] == mark);
    size = next;
  }
  pool->Free(data, size);
}

void Spilling(farrow::MemoryPool* pool, int64_t region) {
  std::vector<uint8_t*> pieces;
  const int64_t piece = region / 16;
  bool has_spilled = false;
  for (int i = 0; i < 20; ++i) {
    uint8_t* data = nullptr;
    CHECK(pool->Allocate(piece, &data).ok());
    std::memset(data, i, static_cast<size_t>(piece));
    has_spilled |= !pool->Contains(data);
    pieces.push_back(data);
  }
  CHECK(has_spilled);
  // An allocation inside the region must move out when it grows; one outside stays there.
  CHECK(pool->Reallocate(piece, 2 * region, &pieces.front()).ok());
  CHECK(!pool->Contains(pieces.front()) && pieces.front()[piece - 1] == 0);
  CHECK(pool->Reallocate(piece, piece + 1, &pieces.back()).ok());
  CHECK(!pool->Contains(pieces.back()) && pieces.back()[piece - 1] == 19);
  pool->Free(pieces.front(), 2 * region);
  pool->Free(pieces.back(), piece + 1);
  for (size_t i = 1; i + 1 < pieces.size(); ++i) pool->Free(pieces[i], piece);
  CHECK(pool->bytes_allocated() == 0);
}

void Strict(FarrowClient* client) {
  auto pool = farrow::MemoryPool::Make(client, /*strict=*/true).ValueOrDie();
  uint8_t* data = nullptr;
  auto status = pool->Allocate(kHuge, &data);
  CHECK(status.IsOutOfMemory());
  CHECK(status.message().find(std::to_string(kHuge)) != std::string::npos);
  CHECK(status.message().find("or the client of this pool has ended") != std::string::npos);
  CHECK(pool->Allocate(100, &data).ok());
  data[99] = 7;
  CHECK(pool->Reallocate(100, kHuge, &data).IsOutOfMemory());
  CHECK(data[99] == 7);  // unchanged
  pool->Free(data, 100);
}

void BadArguments() {
  FarrowPool* pool = nullptr;
  FarrowClient* client = nullptr;
  CHECK(farrow_pool_open(nullptr, 0, &pool) == FARROW_INVALID_ARGUMENT);
  CHECK(std::strlen(farrow_last_error()) > 0);
  CHECK(farrow_last_error_code() == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_pool_allocate(nullptr, 1, 64) == nullptr);
  farrow_pool_free(nullptr, nullptr, 0, 0);
  farrow_pool_close(nullptr);
  farrow_close(nullptr);
  farrow_object_release(nullptr);
  CHECK(farrow_connect("/nonexistent/node.sock", 1.0, &client) == FARROW_DISCONNECTED);
  CHECK(client == nullptr);
  CHECK(farrow_connect(nullptr, -1.0, &client) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_put_bytes(nullptr, "x", 1, nullptr, nullptr) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_writer_seal(nullptr, nullptr) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_get(nullptr, nullptr, "x", 0, nullptr) == FARROW_INVALID_ARGUMENT);
}

// Array and schema are moved from on every error, also when one of them is NULL.
void MovedFrom() {
  static int released = 0;
  ArrowSchema schema{};
  schema.format = "i";
  schema.release = [](ArrowSchema* moved) {
    ++released;
    moved->release = nullptr;
  };
  ArrowArray array{};
  array.release = [](ArrowArray* moved) {
    ++released;
    moved->release = nullptr;
  };
  const auto put = [](ArrowArray* data, ArrowSchema* type) {
    return farrow_put_array(nullptr, FARROW_KIND_ARRAY, data, type, nullptr, nullptr);
  };
  CHECK(put(nullptr, nullptr) == FARROW_INVALID_ARGUMENT && released == 0);
  CHECK(put(nullptr, &schema) == FARROW_INVALID_ARGUMENT);
  CHECK(schema.release == nullptr && released == 1);
  CHECK(put(&array, nullptr) == FARROW_INVALID_ARGUMENT);
  CHECK(array.release == nullptr && released == 2);
}

// A limit is a limit, whatever it is of.
void Statuses() {
  CHECK(farrow::ToArrowStatus(FARROW_TOO_MANY).IsCapacityError());
  CHECK(farrow::ToArrowStatus(FARROW_QUOTA_EXCEEDED).IsCapacityError());
}

void Objects(FarrowClient* client) {
  FarrowObject* object = nullptr;
  FarrowObjectId id{};
  CHECK(farrow_get(client, nullptr, "nothing", 0, &object) == FARROW_NOT_FOUND);
  CHECK(farrow_get(client, nullptr, nullptr, 0, &object) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_get(client, nullptr, "nothing", 0.01, &object) == FARROW_TIMEOUT);
  CHECK(farrow_put_bytes(client, nullptr, 5, nullptr, &id) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_put_bytes(client, nullptr, 0, "empty", &id) == FARROW_OK);
  int is_sealed = 0;
  CHECK(farrow_contains(client, &id, nullptr, &is_sealed) == FARROW_OK && is_sealed == 1);
  CHECK(farrow_get(client, &id, nullptr, 0, &object) == FARROW_OK);
  FarrowKind kind{};
  CHECK(farrow_object_kind(object, &kind) == FARROW_OK && kind == FARROW_KIND_BYTES);
  ArrowArrayStream stream;
  CHECK(farrow_object_stream(object, &stream) == FARROW_INVALID_ARGUMENT);
  farrow_object_release(object);
  CHECK(farrow_delete(client, nullptr, "empty") == FARROW_OK);
  CHECK(farrow_delete(client, nullptr, "empty") == FARROW_NOT_FOUND);
  const std::string name(300, 'n');
  CHECK(farrow_put_bytes(client, "x", 1, name.c_str(), &id) == FARROW_INVALID_ARGUMENT);
  FarrowWriter* writer = nullptr;
  CHECK(farrow_create(client, uint64_t{1} << 40, nullptr, &writer) == FARROW_OUT_OF_MEMORY);
  CHECK(farrow_create(client, 10, "kept", &writer) == FARROW_OK);
  CHECK(farrow_publish(client, farrow_writer_data(writer), 10) == FARROW_OK);
  CHECK(farrow_refresh(client, farrow_writer_data(writer), 10) == FARROW_OK);
  CHECK(farrow_publish(client, &name, 1) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_writer_size(writer) == 10);
  CHECK(farrow_writer_write(writer, 3, "written", 7) == FARROW_OK);
  CHECK(std::memcmp(static_cast<char*>(farrow_writer_data(writer)) + 3, "written", 7) == 0);
  CHECK(farrow_writer_write(writer, 4, "written", 7) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_writer_write(writer, 0, nullptr, 7) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_writer_write(nullptr, 0, "written", 7) == FARROW_INVALID_ARGUMENT);
  CHECK(farrow_writer_abort(writer) == FARROW_OK);
  CHECK(farrow_contains(client, nullptr, "kept", &is_sealed) == FARROW_OK && is_sealed == 0);
}

// A retired pool releases its client with its last allocation, and allocates nothing more.
void Retired(const char* socket) {
  FarrowClient* client = nullptr;
  FarrowPool* pool = nullptr;
  CHECK(farrow_connect(socket, 10.0, &client) == FARROW_OK);
  CHECK(farrow_pool_open(client, 0, &pool) == FARROW_OK);
  uint8_t* data = farrow_pool_allocate(pool, 5000, 64);
  CHECK(data != nullptr);
  farrow_close(client);
  farrow_pool_retire(pool);
  data[4999] = 1;
  CHECK(farrow_pool_contains(pool, data) == 1);
  CHECK(farrow_pool_allocate(pool, 5000, 64) == nullptr);
  CHECK(farrow_pool_reallocate(pool, data, 5000, 100'000, 64) == nullptr);
  CHECK(data[4999] == 1);  // as it was
  data = farrow_pool_reallocate(pool, data, 5000, 4500, 64);
  CHECK(data != nullptr);
  farrow_pool_free(pool, data, 4500, 64);
  CHECK(farrow_pool_contains(pool, data) == 0);
  farrow_pool_close(pool);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  CHECK(farrow_api_version() == FARROW_API_VERSION);
  BadArguments();
  MovedFrom();
  Statuses();
  FarrowClient* client = nullptr;
  CHECK(farrow_connect(argv[1], 10.0, &client) == FARROW_OK);
  FarrowClient* far = client;
  CHECK(farrow_client_at(client, "nobody", &far) == FARROW_INVALID_ARGUMENT && far == nullptr);
  CHECK(farrow_client_at(client, nullptr, &far) == FARROW_INVALID_ARGUMENT);
  Objects(client);
  {
    auto pool = farrow::MemoryPool::Make(client).ValueOrDie();
    SizesAndAlignments(pool.get());
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&pool, seed] { Reallocations(pool.get(), seed); });
    }
    for (auto& thread : threads) thread.join();
    CHECK(pool->bytes_allocated() == 0);
    Spilling(pool.get(), std::atoll(argv[2]));
  }
  Strict(client);
  farrow_close(client);
  Retired(argv[1]);
  std::cout << "ok\n";
  return 0;
}
