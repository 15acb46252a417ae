/*
 * Label objects, find them by a label, wait for several: no object is opened.
 *
 *   cc -std=c11 labels.c $(pkg-config --cflags --libs farrow) -o labels
 *   ./labels SOCKET
 */
#include <stdio.h>

#include "farrow/farrow.h"

static int failed(const char *what) {
  fprintf(stderr, "%s: %s (code %d)\n", what, farrow_last_error(), farrow_last_error_code());
  return 1;
}

int main(int argc, char **argv) {
  const FarrowPair monday[] = {{"day", "monday"}, {"unit", "metre"}};
  const FarrowPutOptions options = {
      .name = "length/1", .metadata = monday, .metadata_count = 2, .wait_seconds = 1.0};
  const FarrowTarget targets[] = {{NULL, "length/1"}, {NULL, "length/2"}};
  int is_sealed[2] = {0, 0};
  FarrowClient *client = NULL;
  FarrowList *list = NULL;
  FarrowListed listed;
  size_t index;

  if (farrow_connect(argc > 1 ? argv[1] : NULL, 10.0, &client) != FARROW_OK) {
    return failed("connect");
  }
  if (farrow_put_bytes_with(client, "hello", 5, &options, NULL) != FARROW_OK) {
    return failed("put");
  }
  if (farrow_put_bytes(client, "plain", 5, "other", NULL) != FARROW_OK) return failed("put");

  /* All objects whose labels include this one. */
  if (farrow_list(client, NULL, monday, 1, &list) != FARROW_OK) return failed("list");
  for (index = 0; index < farrow_list_count(list); index++) {
    if (farrow_list_item(list, index, &listed) != FARROW_OK) return failed("item");
    printf("%s: %llu bytes, unit %s\n", listed.name, (unsigned long long)listed.size,
           farrow_metadata_value(listed.metadata, "unit"));
  }
  farrow_list_free(list);

  /* One of the two is enough. */
  if (farrow_wait(client, targets, 2, 1, 10.0, is_sealed) != FARROW_OK) return failed("wait");
  printf("sealed: %d %d\n", is_sealed[0], is_sealed[1]);

  farrow_close(client);
  return 0;
}
