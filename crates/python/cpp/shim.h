// Functions of the extension's C++ half for its Rust half. All are called with the GIL held.
// Functions that return NULL or a number other than 0 have either set a Python exception, or left a
// text for fs_error().
#pragma once

#include <cstdint>

#include "arrow/c/abi.h"
#include "farrow/farrow.h"

struct _object;
typedef struct _object PyObject;

extern "C" {

// Which pyarrow class an object is; NONE for everything else.
enum fs_class { FS_NONE, FS_TABLE, FS_BATCH, FS_ARRAY, FS_CHUNKED, FS_BUFFER };

// pyarrow's exported functions, in the order of names of fs_capi_name.
const char* fs_capi_name(int index);
int fs_capi_set(int index, const char* signature, void* function);

const char* fs_error();
const char* fs_so_compiled();
const char* fs_so_loaded();

int fs_classify(PyObject* object);

// pyarrow objects to C structures; they keep the object's buffers.
int fs_export_stream(PyObject* object, int cls, ArrowArrayStream* out);
int fs_export_array(PyObject* object, int cls, ArrowArray* array, ArrowSchema* schema);
// The memory of a pyarrow.Buffer, valid while the object lives.
int fs_buffer_view(PyObject* object, const uint8_t** data, int64_t* size);

// C structures (moved from) to new pyarrow objects.
PyObject* fs_wrap_table(ArrowSchema* schema, ArrowArray* batches, int64_t count);
PyObject* fs_wrap_chunked(ArrowSchema* schema, ArrowArray* chunks, int64_t count);
PyObject* fs_wrap_batch(ArrowSchema* schema, ArrowArray* batch);
PyObject* fs_wrap_array(ArrowSchema* schema, ArrowArray* array);

// A pyarrow.Buffer over memory of `owner`; `release` runs once, on any thread.
PyObject* fs_wrap_buffer(uint8_t* data, int64_t size, bool is_mutable, void* owner,
                         void (*release)(void*));

// Bytes and their owner: two words that only the releasing function interprets.
struct fs_bytes {
  const uint8_t* data;
  int64_t size;
  uint64_t owner[2];
};

// A read-only pyarrow.Buffer over each of `count` items, into `out`. Returns how many items were
// taken over: of those `release` runs once for each owner, on any thread. `out` ends early, with
// NULL, after an error.
int64_t fs_wrap_all(const fs_bytes* items, int64_t count, void (*release)(uint64_t*),
                    PyObject** out);

// A new pyarrow.MemoryPool over `pool`. The C++ pool behind it is never freed: every buffer
// keeps a bare pointer to it.
PyObject* fs_wrap_pool(FarrowPool* pool);

}  // extern "C"
