/*
 * Uses Farrow in an exit handler, which runs after the thread-local values of the main thread are
 * destroyed, as destructors of static objects do.
 *
 *   ./late SOCKET
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "farrow/farrow.h"

static FarrowClient *client = NULL;
static FarrowObject *object = NULL;

static void expect(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "not %s: %s (code %d)\n", what, farrow_last_error(), farrow_last_error_code());
  abort();
}

static void at_exit(void) {
  expect(farrow_delete(client, NULL, "nowhere") == FARROW_NOT_FOUND, "missing");
  expect(farrow_last_error_code() == FARROW_OK, "without a last error");
  expect(strcmp(farrow_last_error(), "") == 0, "without a text");
  expect(farrow_delete(NULL, NULL, "late") == FARROW_INVALID_ARGUMENT, "invalid");
  farrow_object_release(object);
  expect(farrow_put_bytes(client, "end", 3, "at exit", NULL) == FARROW_OK, "put");
  expect(farrow_delete(client, NULL, "late") == FARROW_OK, "deleted");
  farrow_close(client);
}

int main(int argc, char **argv) {
  if (atexit(at_exit) != 0) return 1;
  expect(farrow_connect(argc > 1 ? argv[1] : NULL, 10.0, &client) == FARROW_OK, "connected");
  expect(farrow_put_bytes(client, "late", 4, "late", NULL) == FARROW_OK, "put");
  expect(farrow_get(client, NULL, "late", 1.0, &object) == FARROW_OK, "got");
  expect(farrow_delete(client, NULL, "nowhere") == FARROW_NOT_FOUND, "missing");
  expect(strstr(farrow_last_error(), "nowhere") != NULL, "the text of the error");
  return 0;
}
