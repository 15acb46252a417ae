// The bridge: the part of the extension that uses the C++ ABI of one libarrow. It is a shared library
// of its own for each libarrow series, loaded at run time (src/pyarrow/library.rs).
//
// All functions are called with the GIL held. Functions that return NULL or a number other than 0
// have either set a Python exception, or left a text for error().
#pragma once

#include <cstdint>

#include "arrow/c/abi.h"
#include "farrow/farrow.h"

struct _object;
typedef struct _object PyObject;

extern "C" {

// Which pyarrow class an object is; NONE for everything else.
enum fb_class { FB_NONE, FB_TABLE, FB_BATCH, FB_ARRAY, FB_CHUNKED, FB_BUFFER };

// Bytes and their owner: two words that only the releasing function interprets.
struct fb_bytes {
  const uint8_t* data;
  int64_t size;
  uint64_t owner[2];
};

// Farrow's functions behind a pool: those of farrow.h. The bridge links to no library of Farrow.
struct fb_pool_calls {
  decltype(&farrow_pool_close) close;
  decltype(&farrow_pool_allocate) allocate;
  decltype(&farrow_pool_reallocate) reallocate;
  decltype(&farrow_pool_free) free;
  decltype(&farrow_pool_contains) contains;
  decltype(&farrow_pool_is_strict) is_strict;
  decltype(&farrow_pool_note_spill) note_spill;
};

struct fb_calls {
  // The sources of the extension for which this library was built; the first field in all versions.
  const char* build;
  const char* so_compiled;
  const char* (*so_loaded)();
  const char* (*error)();
  void (*set_pool_calls)(const fb_pool_calls* calls);

  // pyarrow's exported functions: their names by index, NULL at the end.
  const char* (*capi_name)(int index);
  int (*capi_set)(int index, const char* signature, void* function);

  int (*classify)(PyObject* object);
  // pyarrow objects to C structures; they keep the object's buffers.
  int (*export_stream)(PyObject* object, int cls, ArrowArrayStream* out);
  int (*export_array)(PyObject* object, int cls, ArrowArray* array, ArrowSchema* schema);
  // The memory of a pyarrow.Buffer, valid while the object lives.
  int (*buffer_view)(PyObject* object, const uint8_t** data, int64_t* size);

  // C structures (moved from) to new pyarrow objects.
  PyObject* (*wrap_table)(ArrowSchema* schema, ArrowArray* batches, int64_t count);
  PyObject* (*wrap_chunked)(ArrowSchema* schema, ArrowArray* chunks, int64_t count);
  PyObject* (*wrap_batch)(ArrowSchema* schema, ArrowArray* batch);
  PyObject* (*wrap_array)(ArrowSchema* schema, ArrowArray* array);

  // A read-only pyarrow.Buffer over memory of `owner`; `release` runs once, on any thread.
  PyObject* (*wrap_buffer)(const uint8_t* data, int64_t size, void* owner,
                           void (*release)(void*));
  // The same for each of `count` items, into `out`. Returns how many items were taken over: of
  // those `release` runs once for each owner, on any thread. `out` ends early, with NULL, after an
  // error.
  int64_t (*wrap_all)(const fb_bytes* items, int64_t count, void (*release)(uint64_t*),
                      PyObject** out);

  // A new pyarrow.MemoryPool over `pool`. The C++ pool behind it is never freed: every buffer
  // keeps a bare pointer to it.
  PyObject* (*wrap_pool)(FarrowPool* pool);
};

// The only exported symbol.
__attribute__((visibility("default"))) const fb_calls* farrow_bridge();

}  // extern "C"
