/*
 * Put bytes, find them by name, write an object in place: the C interface on one page.
 *
 *   cc -std=c11 bytes.c $(pkg-config --cflags --libs farrow) -o bytes
 *   ./bytes SOCKET
 */
#include <stdio.h>
#include <string.h>

#include "farrow/farrow.h"

static int failed(const char *what) {
  fprintf(stderr, "%s: %s (code %d)\n", what, farrow_last_error(), farrow_last_error_code());
  return 1;
}

static int show(FarrowClient *client, const char *name) {
  FarrowObject *object = NULL;
  const void *data = NULL;
  uint64_t size = 0;
  if (farrow_get(client, NULL, name, 1.0, &object) != FARROW_OK) return failed("get");
  if (farrow_object_bytes(object, &data, &size) != FARROW_OK) return failed("bytes");
  printf("%s: %.*s\n", name, (int)size, (const char *)data);
  farrow_object_release(object);
  return 0;
}

int main(int argc, char **argv) {
  FarrowClient *client = NULL;
  FarrowWriter *writer = NULL;
  FarrowObjectId id;
  char digits[33];

  if (farrow_connect(argc > 1 ? argv[1] : NULL, 10.0, &client) != FARROW_OK) {
    return failed("connect");
  }

  /* Copied in, once. */
  if (farrow_put_bytes(client, "hello", 5, "greeting", &id) != FARROW_OK) return failed("put");
  farrow_id_to_hex(&id, digits);
  printf("put greeting as %s\n", digits);

  /* Written in place. */
  if (farrow_create(client, 8, "in place", &writer) != FARROW_OK) return failed("create");
  memcpy(farrow_writer_data(writer), "no copy!", 8);
  if (farrow_writer_seal(writer, NULL) != FARROW_OK) return failed("seal");

  if (show(client, "greeting") != 0 || show(client, "in place") != 0) return 1;

  /* A second object with the same name is refused. */
  if (farrow_put_bytes(client, "again", 5, "greeting", NULL) != FARROW_ALREADY_EXISTS) return 1;
  printf("refused: %s\n", farrow_last_error());

  if (farrow_delete(client, &id, NULL) != FARROW_OK) return failed("delete");
  farrow_close(client);
  return 0;
}
