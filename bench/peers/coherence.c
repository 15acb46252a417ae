/* The figures of Farrow's coherence laboratory, measured without any of its code, by intrinsics and
 * clock_gettime.  x86-64, gcc or clang, `cc -O2`.
 *
 * Reads the name of a figure from each line of standard input and answers with one number a line:
 * nanoseconds of a cache line, GiB/s, or nanoseconds of an object.  `bench/coherence.py` runs this
 * program and Farrow alternately, so that both see the same load of a shared machine. */

#define _GNU_SOURCE
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LINE 64u
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define PIECE (16 * MIB)
#define IN_L2 (1 * MIB)
#define FILL (64 * MIB)
#define OBJECT 1024u
#define SOURCE (64u << 10)

static uint8_t *memory;
static uint8_t source[SOURCE] __attribute__((aligned(64)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((target("clflushopt"))) static void flush_opt(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) _mm_clflushopt(at + i);
    _mm_sfence();
}

static void flush(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) _mm_clflush(at + i);
    _mm_sfence();
}

__attribute__((target("clwb"))) static void write_back(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) _mm_clwb(at + i);
    _mm_sfence();
}

/* Stores one word of each line again, unchanged. */
static void dirty(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) {
        volatile uint8_t *word = at + i;
        *word = *word;
    }
}

__attribute__((target("avx512f"))) static void fill_past_cache(uint8_t *at, size_t bytes) {
    const __m512i value = _mm512_set1_epi64(0x1122334455667788);
    for (size_t i = 0; i < bytes; i += LINE) _mm512_stream_si512((void *)(at + i), value);
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_past_cache(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) {
        const void *from = source + i % SOURCE;
        _mm512_stream_si512((void *)(at + i), _mm512_loadu_si512(from));
    }
    _mm_sfence();
}

static void copy_past_cache_sse2(uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 16) {
        const void *from = source + i % SOURCE;
        _mm_stream_si128((void *)(at + i), _mm_loadu_si128(from));
    }
    _mm_sfence();
}

static void fill_past_cache_sse2(uint8_t *at, size_t bytes) {
    const __m128i value = _mm_set1_epi64x(0x1122334455667788);
    for (size_t i = 0; i < bytes; i += 16) _mm_stream_si128((void *)(at + i), value);
    _mm_sfence();
}

static double gib_per_s(size_t bytes, double ns) { return (double)bytes / ns * 1e9 / (double)GIB; }

static double answer(const char *name) {
    double begin;
    if (!strcmp(name, "clflushopt clean uncached 1 GiB")) {
        flush_opt(memory, GIB);
        begin = now();
        flush_opt(memory, GIB);
        return (now() - begin) / (double)(GIB / LINE);
    }
    if (!strcmp(name, "clflushopt dirty 16 MiB")) {
        dirty(memory, PIECE);
        begin = now();
        flush_opt(memory, PIECE);
        return (now() - begin) / (double)(PIECE / LINE);
    }
    if (!strcmp(name, "clflushopt dirty 1 MiB")) {
        dirty(memory, IN_L2);
        begin = now();
        flush_opt(memory, IN_L2);
        return (now() - begin) / (double)(IN_L2 / LINE);
    }
    if (!strcmp(name, "clflush dirty 1 MiB")) {
        dirty(memory, IN_L2);
        begin = now();
        flush(memory, IN_L2);
        return (now() - begin) / (double)(IN_L2 / LINE);
    }
    if (!strcmp(name, "store, clwb 64 MiB")) {
        flush_opt(memory, FILL);
        begin = now();
        for (size_t i = 0; i < FILL; i += SOURCE) memcpy(memory + i, source, SOURCE);
        write_back(memory, FILL);
        return gib_per_s(FILL, now() - begin);
    }
    if (!strcmp(name, "fill past the cache 64 MiB")) {
        flush_opt(memory, FILL);
        begin = now();
        if (__builtin_cpu_supports("avx512f")) fill_past_cache(memory, FILL);
        else fill_past_cache_sse2(memory, FILL);
        return gib_per_s(FILL, now() - begin);
    }
    if (!strcmp(name, "copy past the cache 64 MiB")) {
        flush_opt(memory, FILL);
        begin = now();
        if (__builtin_cpu_supports("avx512f")) copy_past_cache(memory, FILL);
        else copy_past_cache_sse2(memory, FILL);
        return gib_per_s(FILL, now() - begin);
    }
    if (!strcmp(name, "one object of 1 KiB")) {
        dirty(memory, IN_L2);
        begin = now();
        for (size_t i = 0; i < IN_L2; i += OBJECT) write_back(memory + i, OBJECT);
        return (now() - begin) / (double)(IN_L2 / OBJECT);
    }
    return -1.0;
}

int main(void) {
    /* One huge page more, so that the first one begins at an aligned address. */
    size_t bytes = GIB + 2 * MIB;
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    memory = (uint8_t *)(((uintptr_t)start + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
    madvise(memory, GIB, MADV_HUGEPAGE);
    memset(memory, 1, GIB);
    memset(source, 2, sizeof source);
    char name[128];
    while (fgets(name, sizeof name, stdin) != NULL) {
        name[strcspn(name, "\n")] = 0;
        printf("%.6g\n", answer(name));
        fflush(stdout);
    }
    return 0;
}
