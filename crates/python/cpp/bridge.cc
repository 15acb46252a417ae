#include "bridge.h"

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrow/array.h"
#include "arrow/buffer.h"
#include "arrow/c/bridge.h"
#include "arrow/chunked_array.h"
#include "arrow/config.h"
#include "arrow/extension_type.h"
#include "arrow/record_batch.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "arrow/util/config.h"
#include "farrow/memory_pool.hpp"

namespace {

template <typename T>
using Ptr = std::shared_ptr<T>;

// pyarrow's functions, with the signatures that are their capsules' names.
struct Capi {
  int (*is_table)(PyObject*);
  int (*is_batch)(PyObject*);
  int (*is_array)(PyObject*);
  int (*is_chunked)(PyObject*);
  int (*is_buffer)(PyObject*);
  Ptr<arrow::Table> (*unwrap_table)(PyObject*);
  Ptr<arrow::RecordBatch> (*unwrap_batch)(PyObject*);
  Ptr<arrow::Array> (*unwrap_array)(PyObject*);
  Ptr<arrow::ChunkedArray> (*unwrap_chunked)(PyObject*);
  Ptr<arrow::Buffer> (*unwrap_buffer)(PyObject*);
  PyObject* (*wrap_table)(const Ptr<arrow::Table>&);
  PyObject* (*wrap_batch)(const Ptr<arrow::RecordBatch>&);
  PyObject* (*wrap_array)(const Ptr<arrow::Array>&);
  PyObject* (*wrap_chunked)(const Ptr<arrow::ChunkedArray>&);
  PyObject* (*wrap_buffer)(const Ptr<arrow::Buffer>&);
  PyObject* (*box_pool)(arrow::MemoryPool*);
};
Capi capi;

struct Entry {
  const char* name;
  const char* signature;  // without spaces
  void** place;
};

template <typename F>
constexpr void** Place(F** f) {
  return reinterpret_cast<void**>(f);
}

const Entry entries[] = {
    {"pyarrow_is_table", "int(PyObject*)", Place(&capi.is_table)},
    {"pyarrow_is_batch", "int(PyObject*)", Place(&capi.is_batch)},
    {"pyarrow_is_array", "int(PyObject*)", Place(&capi.is_array)},
    {"pyarrow_is_chunked_array", "int(PyObject*)", Place(&capi.is_chunked)},
    {"pyarrow_is_buffer", "int(PyObject*)", Place(&capi.is_buffer)},
    {"pyarrow_unwrap_table", "std::shared_ptr<arrow::Table>(PyObject*)",
     Place(&capi.unwrap_table)},
    {"pyarrow_unwrap_batch", "std::shared_ptr<arrow::RecordBatch>(PyObject*)",
     Place(&capi.unwrap_batch)},
    {"pyarrow_unwrap_array", "std::shared_ptr<arrow::Array>(PyObject*)",
     Place(&capi.unwrap_array)},
    {"pyarrow_unwrap_chunked_array", "std::shared_ptr<arrow::ChunkedArray>(PyObject*)",
     Place(&capi.unwrap_chunked)},
    {"pyarrow_unwrap_buffer", "std::shared_ptr<arrow::Buffer>(PyObject*)",
     Place(&capi.unwrap_buffer)},
    {"pyarrow_wrap_table", "PyObject*(std::shared_ptr<arrow::Table>const&)",
     Place(&capi.wrap_table)},
    {"pyarrow_wrap_batch", "PyObject*(std::shared_ptr<arrow::RecordBatch>const&)",
     Place(&capi.wrap_batch)},
    {"pyarrow_wrap_array", "PyObject*(std::shared_ptr<arrow::Array>const&)",
     Place(&capi.wrap_array)},
    {"pyarrow_wrap_chunked_array", "PyObject*(std::shared_ptr<arrow::ChunkedArray>const&)",
     Place(&capi.wrap_chunked)},
    {"pyarrow_wrap_buffer", "PyObject*(std::shared_ptr<arrow::Buffer>const&)",
     Place(&capi.wrap_buffer)},
    {"box_memory_pool", "PyObject*(arrow::MemoryPool*)", Place(&capi.box_pool)},
};
constexpr int entry_count = sizeof(entries) / sizeof(entries[0]);

thread_local std::string error_text;

int Fail(std::string text) {
  error_text = std::move(text);
  return 1;
}

int Done(const arrow::Status& status) { return status.ok() ? 0 : Fail(status.ToString()); }

// Runs `body`; no C++ exception reaches Rust.
template <typename T, typename F>
T Guarded(T otherwise, F&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    Fail(error.what());
  } catch (...) {
    Fail("an unknown C++ exception");
  }
  return otherwise;
}

// A buffer over memory that a Rust value owns.
class Kept final : public arrow::Buffer {
 public:
  Kept(const uint8_t* data, int64_t size, void* owner, void (*release)(void*))
      : arrow::Buffer(data, size), owner_(owner), release_(release) {}
  ~Kept() override { release_(owner_); }

 private:
  void* const owner_;
  void (*const release_)(void*);
};

// The same, for an owner of two words.
class KeptSmall final : public arrow::Buffer {
 public:
  KeptSmall(const fb_bytes& from, void (*release)(uint64_t*))
      : arrow::Buffer(from.data, from.size),
        owner_{from.owner[0], from.owner[1]},
        release_(release) {}
  ~KeptSmall() override { release_(owner_); }

 private:
  uint64_t owner_[2];
  void (*const release_)(uint64_t*);
};

template <typename T, typename Wrap>
PyObject* Wrapped(const arrow::Result<T>& result, Wrap wrap) {
  if (!result.ok()) {
    Fail(result.status().ToString());
    return nullptr;
  }
  error_text.clear();
  return wrap(*result);
}

void ReleaseAll(ArrowSchema* schema, ArrowArray* arrays, int64_t count) {
  if (schema->release != nullptr) schema->release(schema);
  for (int64_t i = 0; i < count; ++i) {
    if (arrays[i].release != nullptr) arrays[i].release(&arrays[i]);
  }
}

arrow::Result<Ptr<arrow::Table>> ImportTable(ArrowSchema* c_schema, ArrowArray* arrays,
                                             int64_t count) {
  ARROW_ASSIGN_OR_RAISE(auto schema, arrow::ImportSchema(c_schema));
  std::vector<Ptr<arrow::RecordBatch>> batches;
  batches.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    ARROW_ASSIGN_OR_RAISE(auto batch, arrow::ImportRecordBatch(&arrays[i], schema));
    batches.push_back(std::move(batch));
  }
  return arrow::Table::FromRecordBatches(std::move(schema), batches);
}

arrow::Result<Ptr<arrow::ChunkedArray>> ImportChunked(ArrowSchema* c_schema,
                                                      ArrowArray* arrays, int64_t count) {
  ARROW_ASSIGN_OR_RAISE(auto type, arrow::ImportType(c_schema));
  arrow::ArrayVector chunks;
  chunks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    ARROW_ASSIGN_OR_RAISE(auto chunk, arrow::ImportArray(&arrays[i], type));
    chunks.push_back(std::move(chunk));
  }
  return arrow::ChunkedArray::Make(std::move(chunks), std::move(type));
}

const char* CapiName(int index) {
  return index >= 0 && index < entry_count ? entries[index].name : nullptr;
}

// The capsule's name is the C signature; a function with another signature must not be called.
int CapiSet(int index, const char* signature, void* function) {
  return Guarded(1, [&] {
    std::string plain;
    for (const char* c = signature; *c != 0; ++c) {
      if (*c != ' ') plain.push_back(*c);
    }
    if (plain != entries[index].signature) {
      return Fail(std::string("pyarrow's ") + entries[index].name + " is " + plain +
                  ", expected " + entries[index].signature);
    }
    *entries[index].place = function;
    return 0;
  });
}

const char* Error() { return error_text.c_str(); }
const char* SoLoaded() { return arrow::GetBuildInfo().so_version.c_str(); }

int Classify(PyObject* object) {
  if (capi.is_table(object)) return FB_TABLE;
  if (capi.is_batch(object)) return FB_BATCH;
  if (capi.is_array(object)) return FB_ARRAY;
  if (capi.is_chunked(object)) return FB_CHUNKED;
  if (capi.is_buffer(object)) return FB_BUFFER;
  return FB_NONE;
}

// The C data interface ends names with NUL: two columns could get one name.
arrow::Status CheckNames(const arrow::FieldVector& fields);

arrow::Status CheckNamesOf(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::EXTENSION:
      return CheckNamesOf(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    case arrow::Type::DICTIONARY:
      return CheckNamesOf(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return CheckNames(type.fields());
  }
}

arrow::Status CheckNames(const arrow::FieldVector& fields) {
  for (const auto& field : fields) {
    const auto end = field->name().find('\0');
    if (end != std::string::npos) {
      return arrow::Status::Invalid("the name of column \"", field->name().substr(0, end),
                                    "\" goes on after a NUL, where the Arrow C data interface ends "
                                    "it: rename the column");
    }
    ARROW_RETURN_NOT_OK(CheckNamesOf(*field->type()));
  }
  return arrow::Status::OK();
}

arrow::Status ExportStreamOf(PyObject* object, int cls, ArrowArrayStream* out) {
  if (cls == FB_CHUNKED) {
    auto chunked = capi.unwrap_chunked(object);
    ARROW_RETURN_NOT_OK(CheckNamesOf(*chunked->type()));
    return arrow::ExportChunkedArray(std::move(chunked), out);
  }
  auto table = capi.unwrap_table(object);
  ARROW_RETURN_NOT_OK(CheckNames(table->schema()->fields()));
  auto reader = std::make_shared<arrow::TableBatchReader>(std::move(table));
  return arrow::ExportRecordBatchReader(std::move(reader), out);
}

arrow::Status ExportOneOf(PyObject* object, int cls, ArrowArray* array, ArrowSchema* schema) {
  if (cls == FB_BATCH) {
    auto batch = capi.unwrap_batch(object);
    ARROW_RETURN_NOT_OK(CheckNames(batch->schema()->fields()));
    return arrow::ExportRecordBatch(*batch, array, schema);
  }
  auto one = capi.unwrap_array(object);
  ARROW_RETURN_NOT_OK(CheckNamesOf(*one->type()));
  return arrow::ExportArray(*one, array, schema);
}

int ExportStream(PyObject* object, int cls, ArrowArrayStream* out) {
  return Guarded(1, [&] { return Done(ExportStreamOf(object, cls, out)); });
}

int ExportOne(PyObject* object, int cls, ArrowArray* array, ArrowSchema* schema) {
  return Guarded(1, [&] { return Done(ExportOneOf(object, cls, array, schema)); });
}

int BufferView(PyObject* object, const uint8_t** data, int64_t* size) {
  return Guarded(1, [&] {
    auto buffer = capi.unwrap_buffer(object);
    if (!buffer->is_cpu()) return Fail("a buffer that is not in main memory");
    *data = buffer->data();
    *size = buffer->size();
    return 0;
  });
}

PyObject* WrapTable(ArrowSchema* schema, ArrowArray* batches, int64_t count) {
  return Guarded<PyObject*>(nullptr, [&] {
    auto table = ImportTable(schema, batches, count);
    ReleaseAll(schema, batches, count);
    return Wrapped(table, capi.wrap_table);
  });
}

PyObject* WrapChunked(ArrowSchema* schema, ArrowArray* chunks, int64_t count) {
  return Guarded<PyObject*>(nullptr, [&] {
    auto chunked = ImportChunked(schema, chunks, count);
    ReleaseAll(schema, chunks, count);
    return Wrapped(chunked, capi.wrap_chunked);
  });
}

PyObject* WrapBatch(ArrowSchema* schema, ArrowArray* batch) {
  return Guarded<PyObject*>(
      nullptr, [&] { return Wrapped(arrow::ImportRecordBatch(batch, schema), capi.wrap_batch); });
}

PyObject* WrapArray(ArrowSchema* schema, ArrowArray* array) {
  return Guarded<PyObject*>(
      nullptr, [&] { return Wrapped(arrow::ImportArray(array, schema), capi.wrap_array); });
}

PyObject* WrapBuffer(const uint8_t* data, int64_t size, void* owner, void (*release)(void*)) {
  return Guarded<PyObject*>(nullptr, [&] {
    error_text.clear();
    Ptr<arrow::Buffer> buffer = std::make_shared<Kept>(data, size, owner, release);
    return capi.wrap_buffer(buffer);
  });
}

int64_t WrapAll(const fb_bytes* items, int64_t count, void (*release)(uint64_t*),
                PyObject** out) {
  int64_t taken = 0;
  Guarded(0, [&] {
    error_text.clear();
    for (int64_t i = 0; i < count; ++i) {
      Ptr<arrow::Buffer> buffer = std::make_shared<KeptSmall>(items[i], release);
      taken = i + 1;
      out[i] = capi.wrap_buffer(buffer);
      if (out[i] == nullptr) break;
    }
    return 0;
  });
  return taken;
}

PyObject* WrapPool(FarrowPool* pool) {
  return Guarded<PyObject*>(nullptr, [&] {
    error_text.clear();
    return capi.box_pool(new farrow::MemoryPool(pool));
  });
}

fb_pool_calls pool_calls;

void SetPoolCalls(const fb_pool_calls* calls) { pool_calls = *calls; }

const fb_calls calls = {
    FARROW_BRIDGE_BUILD, ARROW_SO_VERSION, SoLoaded,  Error,      SetPoolCalls, CapiName,
    CapiSet,             Classify,         ExportStream, ExportOne, BufferView, WrapTable,
    WrapChunked,         WrapBatch,        WrapArray, WrapBuffer, WrapAll,      WrapPool,
};

}  // namespace

extern "C" {

// Defined here, so that the library loads with a glibc older than 2.32, which has no such variable.
// libstdc++ reads it: false makes reference counts atomic.
char __libc_single_threaded = 0;

// What farrow::MemoryPool calls, from the extension that loaded this library.
void farrow_pool_close(FarrowPool* pool) { pool_calls.close(pool); }
uint8_t* farrow_pool_allocate(FarrowPool* pool, uint64_t size, uint64_t alignment) {
  return pool_calls.allocate(pool, size, alignment);
}
uint8_t* farrow_pool_reallocate(FarrowPool* pool, uint8_t* data, uint64_t old_size,
                                uint64_t new_size, uint64_t alignment) {
  return pool_calls.reallocate(pool, data, old_size, new_size, alignment);
}
void farrow_pool_free(FarrowPool* pool, uint8_t* data, uint64_t size, uint64_t alignment) {
  pool_calls.free(pool, data, size, alignment);
}
int farrow_pool_contains(const FarrowPool* pool, const void* data) {
  return pool_calls.contains(pool, data);
}
int farrow_pool_is_strict(const FarrowPool* pool) { return pool_calls.is_strict(pool); }
void farrow_pool_note_spill(FarrowPool* pool, uint64_t size) {
  pool_calls.note_spill(pool, size);
}

const fb_calls* farrow_bridge() { return &calls; }

}  // extern "C"
