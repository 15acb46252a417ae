/*
 * A child reads objects that its parent released and deleted, while others take all free memory.
 *
 *   ./fork SOCKET
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "farrow/farrow.h"

enum { BYTES = 1 << 20 };

static int failed(const char *what) {
  fprintf(stderr, "%s: %s (code %d)\n", what, farrow_last_error(), farrow_last_error_code());
  return 1;
}

/* Number of bytes that are not `expected`. */
static int wrong_bytes(const unsigned char *data, uint64_t size, unsigned char expected) {
  int wrong = 0;
  for (uint64_t i = 0; i < size; i++) wrong += data[i] != expected;
  return wrong;
}

/* Fills the free memory, and frees it again. */
static int overwrite(FarrowClient *client, const void *bytes) {
  FarrowObjectId ids[512];
  int count = 0;
  while (count < 512 && farrow_put_bytes(client, bytes, BYTES, NULL, &ids[count]) == FARROW_OK) count++;
  for (int i = 0; i < count; i++) {
    if (farrow_delete(client, &ids[i], NULL) != FARROW_OK) return failed("delete");
  }
  return count > 0 ? 0 : failed("put");
}

int main(int argc, char **argv) {
  FarrowClient *client = NULL;
  FarrowObject *object = NULL;
  FarrowObjectId id;
  const void *data = NULL;
  uint64_t size = 0;
  int go[2];
  unsigned char *bytes = malloc(BYTES);

  if (bytes == NULL || pipe(go) != 0) return 1;
  if (farrow_connect(argc > 1 ? argv[1] : NULL, 10.0, &client) != FARROW_OK) return failed("connect");
  memset(bytes, 0x11, BYTES);
  if (farrow_put_bytes(client, bytes, BYTES, "c", &id) != FARROW_OK) return failed("put");
  if (farrow_get(client, NULL, "c", 1.0, &object) != FARROW_OK) return failed("get");
  if (farrow_object_bytes(object, &data, &size) != FARROW_OK) return failed("bytes");

  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    char step;
    FarrowClient *own = NULL;
    FarrowObjectId copied;
    if (read(go[0], &step, 1) != 1 || wrong_bytes(data, size, 0x11) > 0) _exit(2);
    if (farrow_put_bytes(client, "x", 1, NULL, NULL) != FARROW_DISCONNECTED) _exit(3);
    if (farrow_connect(argc > 1 ? argv[1] : NULL, 10.0, &own) != FARROW_OK) _exit(4);
    if (farrow_put_bytes(own, data, size, "copied", &copied) != FARROW_OK) _exit(5);
    farrow_object_release(object);
    farrow_close(client);
    farrow_close(own);
    _exit(0);
  }
  farrow_object_release(object);
  if (farrow_delete(client, &id, NULL) != FARROW_OK) return failed("delete");
  memset(bytes, 0x22, BYTES);
  if (overwrite(client, bytes) != 0 || write(go[1], "x", 1) != 1) return 1;

  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    fprintf(stderr, "the child ended with %d\n", status);
    return 1;
  }
  /* The object of the child exists, and the end of the child removed nothing. */
  if (farrow_get(client, NULL, "copied", 1.0, &object) != FARROW_OK) return failed("get copied");
  if (farrow_object_bytes(object, &data, &size) != FARROW_OK) return failed("bytes");
  if (size != BYTES || wrong_bytes(data, size, 0x11) > 0) return 1;
  farrow_object_release(object);
  farrow_close(client);
  free(bytes);
  printf("the same bytes\n");
  return 0;
}
