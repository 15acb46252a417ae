/*
 * farrow.h - the C interface of Farrow: share Arrow tables between processes in place.
 *
 * Implemented by libfarrow_capi (crates/capi). All functions may be called from any thread, and
 * a handle may be used by several threads at once, except while one of them gives it back.
 *
 * Errors: functions that can fail return a FarrowStatus. After one that is not FARROW_OK,
 * farrow_last_error() says more, with the numbers, until the same thread calls Farrow again.
 * No function unwinds or aborts for a bad argument; a NULL where a handle belongs is
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

/* The structures of the Arrow C Data and C Stream Interfaces. To look inside, include their
 * definition ("arrow/c/abi.h", or nanoarrow) too. */
struct ArrowArray;
struct ArrowArrayStream;
struct ArrowSchema;

/* Grows when a function is added, changes when one changes. */
#define FARROW_API_VERSION 4

typedef struct FarrowClient FarrowClient; /* a connection to one node */
typedef struct FarrowObject FarrowObject; /* a sealed object that is held: it stays readable */
typedef struct FarrowWriter FarrowWriter; /* an object of bytes that is being written */
typedef struct FarrowPool FarrowPool;     /* memory of the region, for what will be put */
typedef struct FarrowMetadata FarrowMetadata; /* the labels of one object, by key */
typedef struct FarrowList FarrowList;     /* what was listed */

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
  FARROW_PANIC = 12,  /* a defect of Farrow; the message says where */
  FARROW_NODE_LOST = 13, /* the node in whose memory it lies, or is to lie, cannot be reached */
  FARROW_CUT_OFF = 14,   /* the node does not reach most of its cluster: it makes no names */
  FARROW_NODE_UNREACHABLE = 15, /* the node lives; its memory cannot be mapped from here */
  FARROW_INTERRUPTED = 16, /* the call was interrupted while it waited; nothing has changed */
  FARROW_QUOTA_EXCEEDED = 17, /* the client, or its namespace, may not have more */
  FARROW_NOT_RESTORED = 18 /* the object is spilled, and its file is missing or damaged */
} FarrowStatus;

typedef enum FarrowKind {
  FARROW_KIND_BYTES = 1,
  FARROW_KIND_NDARRAY = 2,
  FARROW_KIND_ARRAY = 3,
  FARROW_KIND_CHUNKED_ARRAY = 4,
  FARROW_KIND_RECORD_BATCH = 5,
  FARROW_KIND_TABLE = 6
} FarrowKind;

typedef struct FarrowObjectId {
  uint8_t bytes[16];
} FarrowObjectId;

/* One label: UTF-8 texts that end with a zero byte. The key has 1 to 255 bytes. */
typedef struct FarrowPair {
  const char *key;
  const char *value;
} FarrowPair;

/* An object, by its id or by its name; the other is NULL. */
typedef struct FarrowTarget {
  const FarrowObjectId *id;
  const char *name;
} FarrowTarget;

/* What an object can have besides its value. All zero: nothing. */
typedef struct FarrowPutOptions {
  const char *name;           /* up to 255 bytes; NULL: none */
  const FarrowPair *metadata; /* labels, 4096 bytes in all at most */
  size_t metadata_count;      /* of two labels with the same key the last one counts */
  double wait_seconds;        /* for room, if the region or a quota of objects is full */
} FarrowPutOptions;

/* One object of a list. Its pointers are good until farrow_list_free. */
typedef struct FarrowListed {
  FarrowObjectId id;
  const char *name; /* NULL: none */
  FarrowKind kind;
  uint32_t creator_pid;
  uint64_t size;         /* of its buffers, in bytes */
  uint64_t sealed_at_ns; /* nanoseconds since 1970 */
  uint64_t last_use_ns;  /* nanoseconds since 1970: the last get, or the seal */
  int is_pinned;         /* 1: never evicted */
  int is_spilled;        /* 1: out of memory, until the next get; its labels are not known */
  const FarrowMetadata *metadata; /* of the list: not for farrow_metadata_free */
} FarrowListed;

uint32_t farrow_api_version(void);

/* The last error of this thread. The text is never NULL, and is "" when there was none. */
FarrowStatus farrow_last_error_code(void);
const char *farrow_last_error(void);

/* Write the 32 hexadecimal digits of an id and a zero byte. */
void farrow_id_to_hex(const FarrowObjectId *id, char text[33]);

/* ---- interruption ----------------------------------------------------------------------- */

/* Nonzero: end the call that waits. */
typedef int (*FarrowInterruptCheck)(void *data);

/* Say what ends calls of this thread while they wait. An interrupted call returns
 * FARROW_INTERRUPTED within a tenth of a second and leaves everything as it was: the node forgets
 * the request, and the client can be used as before.
 *
 * Without this call no signal ends a wait: handlers run, and the call goes on for the rest of its
 * time, as system calls do with SA_RESTART.
 *
 * `check`, if not NULL, is called with `data` some twenty times a second by the thread that waits,
 * with no lock held: let a handler set a `volatile sig_atomic_t`, and return that. No signal is
 * missed that way. `check` may call Farrow; it must not throw or jump out.
 *
 * `on_signal`, if not 0, ends a wait when a handler runs on this thread while it waits, as EINTR
 * does, whether or not the handler was set with SA_RESTART. As with EINTR, a signal that comes just
 * before the wait does not end it.
 *
 * Calls that change something and take one round trip (put of what there is room for, seal,
 * delete) are not interrupted. NULL and 0 undo the setting. */
FarrowStatus farrow_set_interrupt(FarrowInterruptCheck check, void *data, int on_signal);

/* ---- connection ------------------------------------------------------------------------- */

/* Connect to the node at a socket path, in its default namespace. NULL: $FARROW_SOCKET, else this
 * user's node. */
FarrowStatus farrow_connect(const char *socket, double timeout_seconds, FarrowClient **client);

/* The same connection with the memory of another node of the cluster: what the new client puts,
 * creates and allocates lies there. Objects are found wherever they are. FARROW_INVALID_ARGUMENT
 * for a node that there is not. Both handles are given back by farrow_close, in any order. */
FarrowStatus farrow_client_at(FarrowClient *client, const char *node, FarrowClient **at);

/* Give the handle back. Objects, pools and writers made with it stay good; the connection ends
 * with the last of them. NULL is allowed. */
void farrow_close(FarrowClient *client);

/* ---- put: copy in what does not lie in the client's pool yet, and seal ------------------- */

/* `name` may be NULL. `id` may be NULL. */
FarrowStatus farrow_put_bytes(FarrowClient *client, const void *data, uint64_t size,
                              const char *name, FarrowObjectId *id);

/* Put an array (FARROW_KIND_ARRAY), or a struct array without nulls as FARROW_KIND_RECORD_BATCH.
 * Array and schema are moved from: their release callbacks are NULL afterwards, also on error. */
FarrowStatus farrow_put_array(FarrowClient *client, FarrowKind kind, struct ArrowArray *array,
                              struct ArrowSchema *schema, const char *name, FarrowObjectId *id);

/* Put all arrays of a stream as FARROW_KIND_TABLE (a stream of struct arrays) or
 * FARROW_KIND_CHUNKED_ARRAY. The stream is moved from, also on error. */
FarrowStatus farrow_put_stream(FarrowClient *client, FarrowKind kind,
                               struct ArrowArrayStream *stream, const char *name,
                               FarrowObjectId *id);

/* The same with a name, labels and a time to wait. `options` may be NULL. */
FarrowStatus farrow_put_bytes_with(FarrowClient *client, const void *data, uint64_t size,
                                   const FarrowPutOptions *options, FarrowObjectId *id);
FarrowStatus farrow_put_array_with(FarrowClient *client, FarrowKind kind,
                                   struct ArrowArray *array, struct ArrowSchema *schema,
                                   const FarrowPutOptions *options, FarrowObjectId *id);
FarrowStatus farrow_put_stream_with(FarrowClient *client, FarrowKind kind,
                                    struct ArrowArrayStream *stream,
                                    const FarrowPutOptions *options, FarrowObjectId *id);

/* ---- create: write bytes in place -------------------------------------------------------- */

FarrowStatus farrow_create(FarrowClient *client, uint64_t size, const char *name,
                           FarrowWriter **writer);
FarrowStatus farrow_create_with(FarrowClient *client, uint64_t size,
                                const FarrowPutOptions *options, FarrowWriter **writer);
/* Writable until seal or abort. Afterwards seal publishes all of the object. */
void *farrow_writer_data(const FarrowWriter *writer);
/* Copy to byte `offset` and publish: large data by all cores and past the caches. */
FarrowStatus farrow_writer_write(const FarrowWriter *writer, uint64_t offset, const void *data,
                                 uint64_t size);
uint64_t farrow_writer_size(const FarrowWriter *writer);
/* Both give the handle back, also on error. After seal the bytes are read-only everywhere. */
FarrowStatus farrow_writer_seal(FarrowWriter *writer, FarrowObjectId *id);
FarrowStatus farrow_writer_abort(FarrowWriter *writer);

/* ---- find: give either an id or a name; the other is NULL -------------------------------- */

/* Hold an object, waiting up to `timeout_seconds` for it to be sealed. */
FarrowStatus farrow_get(FarrowClient *client, const FarrowObjectId *id, const char *name,
                        double timeout_seconds, FarrowObject **object);
FarrowStatus farrow_contains(FarrowClient *client, const FarrowObjectId *id, const char *name,
                             int *is_sealed);
/* The name is free at once, the space when the last holder released it. */
FarrowStatus farrow_delete(FarrowClient *client, const FarrowObjectId *id, const char *name);

/* Wait until `enough` of `count` objects are sealed, `timeout_seconds` at most, and write 1 for each
 * that is sealed and 0 for each other to `is_sealed`, which has room for `count`. Fewer than
 * `enough` are FARROW_OK too: the time is over then. More than `count` is
 * FARROW_INVALID_ARGUMENT. */
FarrowStatus farrow_wait(FarrowClient *client, const FarrowTarget *targets, size_t count,
                         size_t enough, double timeout_seconds, int *is_sealed);

/* ---- look at objects without holding them ------------------------------------------------- */

/* The labels of an object. Give the handle back by farrow_metadata_free. */
FarrowStatus farrow_metadata(FarrowClient *client, const FarrowObjectId *id, const char *name,
                             FarrowMetadata **metadata);
/* 0 for NULL. */
size_t farrow_metadata_count(const FarrowMetadata *metadata);
/* The label at `index`, in the order of the keys. A zero byte inside of a text ends it. The
 * pointers are good as long as the handle. */
FarrowStatus farrow_metadata_pair(const FarrowMetadata *metadata, size_t index, FarrowPair *pair);
/* The value of a key; NULL if there is none. */
const char *farrow_metadata_value(const FarrowMetadata *metadata, const char *key);
void farrow_metadata_free(FarrowMetadata *metadata);

/* List the sealed objects in the memory of the client's node and in its namespace whose name begins
 * with `prefix` (NULL: all, those without a name too) and which have all of `labels`. Give the
 * handle back by farrow_list_free. */
FarrowStatus farrow_list(FarrowClient *client, const char *prefix, const FarrowPair *labels,
                         size_t label_count, FarrowList **list);
/* 0 for NULL. */
size_t farrow_list_count(const FarrowList *list);
/* The object at `index`: by name, those without one last. */
FarrowStatus farrow_list_item(const FarrowList *list, size_t index, FarrowListed *listed);
void farrow_list_free(FarrowList *list);

/* ---- a held object: read-only, zero-copy --------------------------------------------------- */

FarrowStatus farrow_object_id(const FarrowObject *object, FarrowObjectId *id);
FarrowStatus farrow_object_kind(const FarrowObject *object, FarrowKind *kind);
/* The bytes of a FARROW_KIND_BYTES object; good until farrow_object_release. */
FarrowStatus farrow_object_bytes(const FarrowObject *object, const void **data, uint64_t *size);
/* An array or a record batch (as a struct array). What it exports keeps the object held. */
FarrowStatus farrow_object_array(const FarrowObject *object, struct ArrowArray *array,
                                 struct ArrowSchema *schema);
/* Any Arrow object as a stream: of its chunks, its batches, or of its one array. What the stream
 * gives out keeps the object held. */
FarrowStatus farrow_object_stream(const FarrowObject *object, struct ArrowArrayStream *stream);
void farrow_object_release(FarrowObject *object);

/* ---- pool: build what will be put in the region ------------------------------------------- */

/* A pool of this client. `strict` says what farrow_pool_is_strict() answers; the functions here
 * never spill: that is up to the allocator built on them. */
FarrowStatus farrow_pool_open(FarrowClient *client, int strict, FarrowPool **pool);
/* Takes room for `size` bytes of buffers now, all of it or none. A pool takes what is free, and no
 * object is evicted for it; a load that knows how much it takes says so here, and then objects make
 * room for it. What is not used goes back when the pool is closed or retired, or with size 0. */
FarrowStatus farrow_pool_expect(const FarrowPool *pool, uint64_t size);
/* Give the handle back; nothing of it may be in use any more. */
void farrow_pool_close(FarrowPool *pool);
/* Give out no more memory, and let go of the client when the last allocation is freed. The
 * handle stays good: for allocators that can never know who still points to them. */
void farrow_pool_retire(FarrowPool *pool);

/* NULL when the region has no room. `alignment` is a power of two, `size` is not 0. */
uint8_t *farrow_pool_allocate(FarrowPool *pool, uint64_t size, uint64_t alignment);
/* NULL when there is no room: the old memory is good then. */
uint8_t *farrow_pool_reallocate(FarrowPool *pool, uint8_t *data, uint64_t old_size,
                                uint64_t new_size, uint64_t alignment);
/* Give memory back; a sealed object that lies in it keeps it. */
void farrow_pool_free(FarrowPool *pool, uint8_t *data, uint64_t size, uint64_t alignment);
/* Whether an address lies in the region, and so belongs to the functions above. */
int farrow_pool_contains(const FarrowPool *pool, const void *data);
int farrow_pool_is_strict(const FarrowPool *pool);
/* Count an allocation that had to go elsewhere. */
void farrow_pool_note_spill(FarrowPool *pool, uint64_t size);

/* ---- coherence: for those who write a region's bytes themselves ---------------------------- */

/* Write this node's cache lines of a range of the region back to memory, or forget them. Both do
 * nothing but order loads and stores where the fabric is coherent. */
FarrowStatus farrow_publish(FarrowClient *client, const void *data, uint64_t size);
FarrowStatus farrow_refresh(FarrowClient *client, const void *data, uint64_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FARROW_FARROW_H_ */
