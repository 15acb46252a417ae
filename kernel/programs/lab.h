// SPDX-License-Identifier: Apache-2.0
// What the programs of the laboratory share. They run in a guest, as root; stdout is its console.
#ifndef LAB_H
#define LAB_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "farrow_shmem_ioctl.h"

#define DEVICE "/dev/farrow_shmem"
#define PARAMETERS "/sys/module/farrow_shmem/parameters/"
#define ORDER_MAX 10

static inline _Noreturn void fail(const char *format, ...)
{
    const int error = errno;
    va_list words;

    printf("lab: FAIL: ");
    va_start(words, format);
    vprintf(format, words);
    va_end(words);
    printf(" (errno %d: %s)\n", error, strerror(error));
    fflush(stdout);
    exit(1);
}

static inline size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

// 0, or the errno with which the module refuses the value.
static inline int try_parameter(const char *name, unsigned long value)
{
    char path[128], text[32];
    const int length = snprintf(text, sizeof text, "%lu", value);
    int error = 0;

    snprintf(path, sizeof path, PARAMETERS "%s", name);
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        fail("%s", path);
    if (write(file, text, (size_t)length) != length)
        error = errno;
    close(file);
    return error;
}

static inline void set_parameter(const char *name, unsigned long value)
{
    errno = try_parameter(name, value);
    if (errno != 0)
        fail("parameter %s = %lu", name, value);
}

static inline int open_device(int flags)
{
    const int file = open(DEVICE, flags | O_CLOEXEC);

    if (file < 0)
        fail("open " DEVICE);
    return file;
}

static inline int maintain(int file, uint64_t offset, uint64_t bytes, uint32_t op)
{
    const struct farrow_shmem_range range = {.offset = offset, .bytes = bytes, .op = op};

    return ioctl(file, FARROW_SHMEM_MAINTAIN, &range) == 0 ? 0 : errno;
}

static inline int write_back_all(int file)
{
    return ioctl(file, FARROW_SHMEM_WRITE_BACK_ALL, 0) == 0 ? 0 : errno;
}

static inline size_t number(const char *text, const char *name)
{
    char *end;

    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-')
        fail("%s: %s is not a number", name, text);
    return (size_t)value;
}

// The two programs of the thesis differ in what they do with each word of the mapping.
static inline int sweep(int count, char **words, void (*use)(volatile uint64_t *, size_t))
{
    if (count != 3)
        fail("usage: %s BYTES TIMES", words[0]);
    const size_t bytes = number(words[1], "BYTES");
    const size_t times = number(words[2], "TIMES");

    for (size_t time = 0; time < times; time++) {
        // Opened anew each time: the last close frees the pages, so that each time begins alike.
        const int file = open_device(O_RDWR);
        void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED)
            fail("map %zu B", bytes);
        use(mapped, bytes / sizeof(uint64_t));
        if (munmap(mapped, bytes) != 0)
            fail("unmap %zu B", bytes);
        close(file);
    }
    return 0;
}

#endif
