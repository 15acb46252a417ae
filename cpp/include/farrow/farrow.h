/*
 * farrow.h - the C interface of Farrow: share Arrow tables between processes in place.
 *
 * Implemented by libfarrow (crates/capi). All functions may be called from any thread, and
 * several threads may use a handle at once, except while one of them frees it.
 *
 * Errors: functions that can fail return a FarrowStatus. If it is not FARROW_OK,
 * farrow_last_error() returns the details until the same thread calls Farrow again.
 * No function unwinds or aborts for an invalid argument; a NULL handle is
 * FARROW_INVALID_ARGUMENT.
 *
 * Sizes and offsets are in bytes, times in seconds. Strings are UTF-8 and end with a zero byte.
 */
#ifndef FARROW_FARROW_H_
#define FARROW_FARROW_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The structures of the Arrow C Data and C Stream Interfaces. To access their fields, also include
 * their definition ("arrow/c/abi.h", or nanoarrow). */
struct ArrowArray;
struct ArrowArrayStream;
struct ArrowSchema;

/* Increases when a function is added or changes. */
#define FARROW_API_VERSION 5

typedef struct FarrowClient FarrowClient; /* a connection to one node */
typedef struct FarrowObject FarrowObject; /* a held sealed object: it stays readable */
typedef struct FarrowWriter FarrowWriter; /* an object of bytes that is being written */
typedef struct FarrowPool FarrowPool;     /* memory of the region, for values to put */
typedef struct FarrowMetadata FarrowMetadata; /* the labels of one object, by key */
typedef struct FarrowList FarrowList;     /* the result of farrow_list */

/* The result of a call. */
typedef enum FarrowStatus {
  FARROW_OK = 0,
  FARROW_NOT_FOUND = 1,
  FARROW_ALREADY_EXISTS = 2,
  FARROW_OUT_OF_MEMORY = 3,
  FARROW_TOO_MANY = 4, /* objects, clients, grants or holds */
  FARROW_TIMEOUT = 5,
  FARROW_INVALID_DESCRIPTOR = 6,
  FARROW_DISCONNECTED = 7,
  FARROW_PERMISSION_DENIED = 8,
  FARROW_INVALID_ARGUMENT = 9,
  FARROW_PROTOCOL = 10,
  FARROW_SYSTEM = 11, /* an error of the operating system */
  FARROW_PANIC = 12,  /* a defect of Farrow; the message has the details */
  FARROW_NODE_LOST = 13, /* the node that owns the memory cannot be reached */
  FARROW_CUT_OFF = 14,   /* the node does not reach most of its cluster and creates no names */
  FARROW_NODE_UNREACHABLE = 15, /* the node is alive; its memory cannot be mapped from here */
  FARROW_INTERRUPTED = 16, /* the call was interrupted while it waited; nothing changed */
  FARROW_QUOTA_EXCEEDED = 17, /* the quota of the client or its namespace is exhausted */
  FARROW_NOT_RESTORED = 18 /* the object is spilled, and its file is missing or damaged */
} FarrowStatus;

/* The kind of a value. */
typedef enum FarrowKind {
  FARROW_KIND_BYTES = 1,
  FARROW_KIND_NDARRAY = 2,
  FARROW_KIND_ARRAY = 3,
  FARROW_KIND_CHUNKED_ARRAY = 4,
  FARROW_KIND_RECORD_BATCH = 5,
  FARROW_KIND_TABLE = 6
} FarrowKind;

/* The id of an object; unique in the cluster. */
typedef struct FarrowObjectId {
  uint8_t bytes[16];
} FarrowObjectId;

/* One label. The key has 1 to 255 bytes. */
typedef struct FarrowPair {
  const char *key;
  const char *value;
} FarrowPair;

/* An object, by its id or by its name; the other one is NULL. */
typedef struct FarrowTarget {
  const FarrowObjectId *id;
  const char *name;
} FarrowTarget;

/* Options of a put. All zero: none. */
typedef struct FarrowPutOptions {
  const char *name;           /* up to 255 bytes; NULL: none */
  const FarrowPair *metadata; /* labels, at most 4096 bytes in total */
  size_t metadata_count;      /* of several labels with one key, the last one applies */
  double wait_seconds;        /* longest wait if the region or a quota of objects is full */
  int replace;                /* not 0: take the place of the object of this name, in one step */
  int statistics;             /* not 0: store statistics of a table or record batch, by which scans
                               * skip rows; all its bytes are read for that */
} FarrowPutOptions;

/* One object of a list. Its pointers are valid until farrow_list_free. */
typedef struct FarrowListed {
  FarrowObjectId id;
  const char *name; /* NULL: none */
  FarrowKind kind;
  uint32_t creator_pid;
  uint64_t size;         /* of its buffers, in bytes */
  uint64_t sealed_at_ns; /* nanoseconds since 1970 */
  uint64_t last_use_ns;  /* nanoseconds since 1970: the last get, or the seal */
  int is_pinned;         /* 1: never evicted */
  int is_spilled;        /* 1: spilled, until the next get; its labels are not known */
  const FarrowMetadata *metadata; /* owned by the list: not for farrow_metadata_free */
} FarrowListed;

/* ---- version and errors ------------------------------------------------------------------ */

/* FARROW_API_VERSION of the library that is loaded. */
uint32_t farrow_api_version(void);

/* The status of the last error of this thread; FARROW_OK if there was none. */
FarrowStatus farrow_last_error_code(void);
/* The text of the last error of this thread: never NULL, and "" if there was none. At the end of a
 * thread, where exit handlers and destructors of static and thread-local objects run, an error has
 * its status only. */
const char *farrow_last_error(void);

/* Writes the 32 hexadecimal digits of an id and a zero byte. */
void farrow_id_to_hex(const FarrowObjectId *id, char text[33]);

/* ---- interruption ----------------------------------------------------------------------- */

/* A function that returns nonzero to end the waiting call. */
typedef int (*FarrowInterruptCheck)(void *data);

/* Sets how waiting calls of this thread end early. An interrupted call returns FARROW_INTERRUPTED
 * within a tenth of a second and changes nothing: the node drops the request, and the client stays
 * usable.
 *
 * Without this setting no signal ends a wait: handlers run, and the call continues for the rest of
 * its time, as system calls do with SA_RESTART.
 *
 * `check`, if not NULL, is called with `data` about twenty times a second by the waiting thread,
 * with no lock held. To miss no signal, let a handler set a `volatile sig_atomic_t`, and return
 * its value. `check` may call Farrow, and no check ends these calls; it must not throw or jump
 * out.
 *
 * `on_signal`, if not 0, ends a wait when a handler runs on the waiting thread, as EINTR does,
 * whether or not the handler was set with SA_RESTART. As with EINTR, a signal just before the wait
 * does not end it.
 *
 * Calls that change something in one round trip (put into free room, seal, delete) are not
 * interrupted. NULL and 0 remove the setting. */
FarrowStatus farrow_set_interrupt(FarrowInterruptCheck check, void *data, int on_signal);

/* ---- connection ------------------------------------------------------------------------- */

/* Connects to the node at a socket path, in its default namespace. NULL: $FARROW_SOCKET, else this
 * user's node, else a private node is started, if the program farrowd is in the bin folder of the
 * library's prefix or on the PATH. A private node ends with its last client or, while it has named
 * objects, $FARROW_LINGER seconds later (600 by default). $FARROW_MEMORY (such as 4GiB) sets its
 * size. */
FarrowStatus farrow_connect(const char *socket, double timeout_seconds, FarrowClient **client);

/* The same connection with the memory of another node of the cluster: the new client puts, creates
 * and allocates there. It finds objects on every node. An unknown node is
 * FARROW_INVALID_ARGUMENT. Free both handles with farrow_close, in any order. */
FarrowStatus farrow_client_at(FarrowClient *client, const char *node, FarrowClient **at);

/* Frees the handle. Its objects, pools and writers stay valid; the connection ends with the last
 * of them. NULL is allowed. */
void farrow_close(FarrowClient *client);

/* ---- put: copy values outside the client's pool into the region, and seal ---------------- */

/* Puts `size` bytes. `name` may be NULL: none. `id` receives the id of the object; it may be
 * NULL. */
FarrowStatus farrow_put_bytes(FarrowClient *client, const void *data, uint64_t size,
                              const char *name, FarrowObjectId *id);

/* Puts an array (FARROW_KIND_ARRAY), or a struct array without nulls as FARROW_KIND_RECORD_BATCH.
 * Array and schema are moved from: their release callbacks are NULL afterwards, also on error. */
FarrowStatus farrow_put_array(FarrowClient *client, FarrowKind kind, struct ArrowArray *array,
                              struct ArrowSchema *schema, const char *name, FarrowObjectId *id);

/* Puts all arrays of a stream as FARROW_KIND_TABLE (a stream of struct arrays) or
 * FARROW_KIND_CHUNKED_ARRAY. The stream is moved from, also on error. */
FarrowStatus farrow_put_stream(FarrowClient *client, FarrowKind kind,
                               struct ArrowArrayStream *stream, const char *name,
                               FarrowObjectId *id);

/* As farrow_put_bytes, with options, which may be NULL. */
FarrowStatus farrow_put_bytes_with(FarrowClient *client, const void *data, uint64_t size,
                                   const FarrowPutOptions *options, FarrowObjectId *id);
/* As farrow_put_array, with options, which may be NULL. */
FarrowStatus farrow_put_array_with(FarrowClient *client, FarrowKind kind,
                                   struct ArrowArray *array, struct ArrowSchema *schema,
                                   const FarrowPutOptions *options, FarrowObjectId *id);
/* As farrow_put_stream, with options, which may be NULL. */
FarrowStatus farrow_put_stream_with(FarrowClient *client, FarrowKind kind,
                                    struct ArrowArrayStream *stream,
                                    const FarrowPutOptions *options, FarrowObjectId *id);

/* ---- create: write bytes in place -------------------------------------------------------- */

/* Creates an object of `size` bytes, to be written and then sealed. `name` may be NULL: none. End
 * the handle with farrow_writer_seal or farrow_writer_abort. */
FarrowStatus farrow_create(FarrowClient *client, uint64_t size, const char *name,
                           FarrowWriter **writer);
/* As farrow_create, with options, which may be NULL. */
FarrowStatus farrow_create_with(FarrowClient *client, uint64_t size,
                                const FarrowPutOptions *options, FarrowWriter **writer);
/* The bytes, writable until seal or abort. Seal publishes the whole object. */
void *farrow_writer_data(const FarrowWriter *writer);
/* Copies to byte `offset` and publishes: large data with all cores and past the caches. */
FarrowStatus farrow_writer_write(const FarrowWriter *writer, uint64_t offset, const void *data,
                                 uint64_t size);
/* The size with which the object was created, in bytes. */
uint64_t farrow_writer_size(const FarrowWriter *writer);
/* Seals the object: its bytes are then read-only everywhere. Frees the handle, also on error. `id`
 * may be NULL. */
FarrowStatus farrow_writer_seal(FarrowWriter *writer, FarrowObjectId *id);
/* Drops the object. Frees the handle, also on error. */
FarrowStatus farrow_writer_abort(FarrowWriter *writer);

/* ---- find: pass either an id or a name; the other is NULL -------------------------------- */

/* Holds an object, after waiting up to `timeout_seconds` for it to be sealed. Free the handle with
 * farrow_object_release. */
FarrowStatus farrow_get(FarrowClient *client, const FarrowObjectId *id, const char *name,
                        double timeout_seconds, FarrowObject **object);
/* Writes 1 to `is_sealed` if there is such a sealed object, else 0. */
FarrowStatus farrow_contains(FarrowClient *client, const FarrowObjectId *id, const char *name,
                             int *is_sealed);
/* Deletes an object. Its name is free at once, the space after the last holder releases the
 * object. */
FarrowStatus farrow_delete(FarrowClient *client, const FarrowObjectId *id, const char *name);

/* Waits until `enough` of `count` objects are sealed, at most `timeout_seconds`. Writes 1 for each
 * sealed object and 0 for each other one to `is_sealed`, which has room for `count`. A timeout with
 * fewer sealed objects is FARROW_OK too. `enough` above `count` is FARROW_INVALID_ARGUMENT. */
FarrowStatus farrow_wait(FarrowClient *client, const FarrowTarget *targets, size_t count,
                         size_t enough, double timeout_seconds, int *is_sealed);

/* ---- look at objects without holding them ------------------------------------------------- */

/* The labels of an object. Free the handle with farrow_metadata_free. */
FarrowStatus farrow_metadata(FarrowClient *client, const FarrowObjectId *id, const char *name,
                             FarrowMetadata **metadata);
/* The number of labels; 0 for NULL. */
size_t farrow_metadata_count(const FarrowMetadata *metadata);
/* The label at `index`, in the order of the keys. A text ends at its first zero byte. The pointers
 * are valid as long as the handle. */
FarrowStatus farrow_metadata_pair(const FarrowMetadata *metadata, size_t index, FarrowPair *pair);
/* The value of a key; NULL if there is none. */
const char *farrow_metadata_value(const FarrowMetadata *metadata, const char *key);
/* Frees the handle. NULL is allowed. */
void farrow_metadata_free(FarrowMetadata *metadata);

/* Lists the sealed objects in the memory of the client's node and in its namespace whose name
 * begins with `prefix` (NULL: all, also without a name) and that have all of `labels`. Free the
 * handle with farrow_list_free. */
FarrowStatus farrow_list(FarrowClient *client, const char *prefix, const FarrowPair *labels,
                         size_t label_count, FarrowList **list);
/* The number of objects; 0 for NULL. */
size_t farrow_list_count(const FarrowList *list);
/* The object at `index`, in the order of the names; objects without a name are last. */
FarrowStatus farrow_list_item(const FarrowList *list, size_t index, FarrowListed *listed);
/* Frees the handle. NULL is allowed. */
void farrow_list_free(FarrowList *list);

/* ---- a held object: read-only, zero-copy --------------------------------------------------- */

/* The id of the object. */
FarrowStatus farrow_object_id(const FarrowObject *object, FarrowObjectId *id);
/* The kind of its value. */
FarrowStatus farrow_object_kind(const FarrowObject *object, FarrowKind *kind);
/* The bytes of a FARROW_KIND_BYTES object; valid until farrow_object_release. */
FarrowStatus farrow_object_bytes(const FarrowObject *object, const void **data, uint64_t *size);
/* An array or a record batch (as a struct array). The exported array keeps the object held. */
FarrowStatus farrow_object_array(const FarrowObject *object, struct ArrowArray *array,
                                 struct ArrowSchema *schema);
/* Any Arrow object as a stream of its chunks, its batches, or its one array. The arrays of the
 * stream keep the object held. */
FarrowStatus farrow_object_stream(const FarrowObject *object, struct ArrowArrayStream *stream);
/* Frees the handle and releases the hold. Exported arrays stay valid. NULL is allowed. */
void farrow_object_release(FarrowObject *object);

/* ---- pool: build values in the region before a put ---------------------------------------- */

/* Opens a pool of this client. farrow_pool_is_strict() returns `strict`; the functions here never
 * allocate elsewhere: that is up to the allocator built on them. */
FarrowStatus farrow_pool_open(FarrowClient *client, int strict, FarrowPool **pool);
/* Reserves room for `size` bytes of buffers now, all of it or none. Without it a pool takes only
 * free memory, and no object is evicted for it; this call evicts objects if necessary. Unused room
 * is given back when the pool is closed or retired, or with size 0. */
FarrowStatus farrow_pool_expect(const FarrowPool *pool, uint64_t size);
/* Frees the handle; none of its memory may be in use. */
void farrow_pool_close(FarrowPool *pool);
/* Stops allocation, and releases the client when the last allocation is freed. The handle stays
 * valid: for allocators that cannot know which buffers still point to them. */
void farrow_pool_retire(FarrowPool *pool);

/* Allocates memory; NULL if the region has no room. `alignment` is a power of two, `size` is not
 * 0. */
uint8_t *farrow_pool_allocate(FarrowPool *pool, uint64_t size, uint64_t alignment);
/* Changes the size; NULL if the region has no room: the old memory then stays valid. */
uint8_t *farrow_pool_reallocate(FarrowPool *pool, uint8_t *data, uint64_t old_size,
                                uint64_t new_size, uint64_t alignment);
/* Frees memory; a sealed object in it keeps it. */
void farrow_pool_free(FarrowPool *pool, uint8_t *data, uint64_t size, uint64_t alignment);
/* Whether an address is in the region, and so belongs to the functions above. */
int farrow_pool_contains(const FarrowPool *pool, const void *data);
/* What was passed to farrow_pool_open. */
int farrow_pool_is_strict(const FarrowPool *pool);
/* Counts an allocation made elsewhere. */
void farrow_pool_note_spill(FarrowPool *pool, uint64_t size);

/* ---- coherence: for programs that write bytes of a region directly ------------------------- */

/* Writes this node's cache lines of a range of the region back to memory. On a coherent fabric it
 * only orders loads and stores. */
FarrowStatus farrow_publish(FarrowClient *client, const void *data, uint64_t size);
/* Invalidates this node's cache lines of a range. On a coherent fabric it only orders loads and
 * stores. */
FarrowStatus farrow_refresh(FarrowClient *client, const void *data, uint64_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FARROW_FARROW_H_ */
