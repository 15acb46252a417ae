// SPDX-License-Identifier: Apache-2.0
// check: what the module promises, case by case. Ends at the first promise that is not kept.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

#include "lab.h"

static size_t page;

static uint64_t counter(const char *name)
{
    FILE *file = fopen("/sys/kernel/debug/farrow_shmem/counters", "re");
    char word[64];
    uint64_t value;

    if (file == NULL)
        fail("counters");
    while (fscanf(file, "%63s %" SCNu64, word, &value) == 2) {
        if (strcmp(word, name) == 0) {
            fclose(file);
            return value;
        }
    }
    fail("no counter %s", name);
}

static char *map(int file, size_t first, size_t pages)
{
    void *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                    (off_t)(first * page));

    if (at == MAP_FAILED)
        fail("map %zu pages at %zu", pages, first);
    return at;
}

static void unmap(char *at, size_t pages)
{
    if (munmap(at, pages * page) != 0)
        fail("unmap %zu pages", pages);
}

static void expect_stamp(const char *at, size_t number, const char *what)
{
    const uint64_t found = *(const volatile uint64_t *)at;

    if (found != number + 1)
        fail("%s: page %zu of the file holds %" PRIu64, what, number, found);
}

// Each page of the file gets its number through a mapping of its own, so that pages that are one
// page, or in the wrong place, show.
static void stamp(int file, size_t pages)
{
    for (int is_second = 0; is_second < 2; is_second++) {
        for (size_t i = 0; i < pages; i++) {
            char *at = map(file, i, 1);
            if (is_second)
                expect_stamp(at, i, "single pages");
            else
                *(volatile uint64_t *)at = i + 1;
            unmap(at, 1);
        }
    }
}

// A fault at page `touched` of a mapping of the pages [first, first + pages) of the file maps what
// of its block lies in the mapping, each page to its place; nothing of it faults again.
static void check_fault(int file, unsigned order, size_t first, size_t pages, size_t touched)
{
    char *at = map(file, first, pages);
    const size_t block = (first + touched) >> order;
    const size_t blocks = ((first + pages - 1) >> order) - (first >> order) + 1;
    const uint64_t faults = counter("faults");
    char what[96];

    snprintf(what, sizeof what, "order %u, mapping %zu+%zu, fault at %zu", order, first, pages,
             touched);
    // Not at the begin of the page.
    (void)*(volatile char *)(at + touched * page + 1234);
    for (size_t i = 0; i < pages; i++)
        if ((first + i) >> order == block)
            expect_stamp(at + i * page, first + i, what);
    if (counter("faults") != faults + 1)
        fail("%s: %" PRIu64 " faults, not 1", what, counter("faults") - faults);
    for (size_t i = pages; i-- > 0;)
        expect_stamp(at + i * page, first + i, what);
    if (counter("faults") != faults + blocks)
        fail("%s: %" PRIu64 " faults for %zu blocks", what, counter("faults") - faults, blocks);
    unmap(at, pages);
}

static void check_faults(void)
{
    static const unsigned orders[] = {0, 1, 3, 6, 10};

    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        const unsigned order = orders[i];
        const size_t block = 1u << order;
        const size_t begins[] = {0, 1, block - 1, block / 2 + 1, block + 3, 3 * block};
        const size_t lengths[] = {1, 2, block - 1, block, block + 1, 2 * block + 3};

        set_parameter("order", order);
        const int file = open_device(O_RDWR);
        stamp(file, 5 * block + 8);
        if (counter("blocks_live") != (5 * block + 8 + block - 1) / block)
            fail("order %u: %" PRIu64 " blocks live", order, counter("blocks_live"));
        for (size_t b = 0; b < sizeof begins / sizeof *begins; b++) {
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                if (lengths[l] == 0)
                    continue;
                check_fault(file, order, begins[b], lengths[l], 0);
                check_fault(file, order, begins[b], lengths[l], lengths[l] / 2);
                check_fault(file, order, begins[b], lengths[l], lengths[l] - 1);
            }
        }
        close(file);
    }
    printf("lab: ok: faults map the right pages of the right block\n");
}

// Processes that open the device by themselves, and children, see one memory.
static void check_sharing(void)
{
    int ready[2], written[2];
    char token = 0;

    set_parameter("order", 4);
    if (pipe(ready) != 0 || pipe(written) != 0)
        fail("pipe");
    const pid_t other = fork();
    if (other == 0) {
        const int file = open_device(O_RDWR);
        if (read(ready[0], &token, 1) != 1)
            fail("pipe");
        char *at = map(file, 5, 20);
        if (at[0] != 42)
            fail("another process reads %d", at[0]);
        at[19 * page] = 43;
        if (write(written[1], &token, 1) != 1)
            fail("pipe");
        exit(0);
    }
    const int file = open_device(O_RDWR);
    char *at = map(file, 0, 32);
    at[5 * page] = 42;
    if (write(ready[1], &token, 1) != 1 || read(written[0], &token, 1) != 1)
        fail("pipe");
    if (at[24 * page] != 43)
        fail("what another process wrote reads %d", at[24 * page]);
    int status;
    waitpid(other, &status, 0);
    if (status != 0)
        fail("other process: status %x", status);
    const pid_t child = fork();
    if (child == 0) {
        at[7 * page] = 44;
        exit(at[5 * page] == 42 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    if (status != 0 || at[7 * page] != 44)
        fail("child: status %x, wrote %d", status, at[7 * page]);
    // Another order is another space.
    set_parameter("order", 3);
    const int later = open_device(O_RDWR);
    char *fresh = map(later, 5, 1);
    if (fresh[0] != 0)
        fail("a space of another order holds %d", fresh[0]);
    unmap(fresh, 1);
    close(later);
    unmap(at, 32);
    close(file);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(written[i]);
    }
    printf("lab: ok: processes share by offset and order\n");
}

#define THREADS 4
#define RACE_ORDER 8
#define RACE_PAGES (2u << RACE_ORDER)

struct race {
    char *at;
    pthread_barrier_t *start;
    size_t step;
};

static void *touch_all(void *argument)
{
    const struct race *race = argument;

    pthread_barrier_wait(race->start);
    for (size_t i = 0; i < RACE_PAGES; i++) {
        // An odd step meets every page, in an order of its own.
        const size_t number = i * race->step % RACE_PAGES;
        __atomic_fetch_add((uint32_t *)(race->at + number * page), (uint32_t)number + 1,
                           __ATOMIC_RELAXED);
    }
    return NULL;
}

// Threads that fault in the same blocks of one mapping at once make each once and lose nothing.
static void check_races(void)
{
    set_parameter("order", RACE_ORDER);
    for (int round = 0; round < 40; round++) {
        const uint64_t allocated = counter("pages_allocated");
        const int file = open_device(O_RDWR);
        char *at = map(file, 0, RACE_PAGES);
        pthread_barrier_t start;
        pthread_t threads[THREADS];
        struct race races[THREADS];

        pthread_barrier_init(&start, NULL, THREADS);
        for (size_t i = 0; i < THREADS; i++) {
            races[i] = (struct race){at, &start, 2 * i + 1};
            if (pthread_create(&threads[i], NULL, touch_all, &races[i]) != 0)
                fail("pthread_create");
        }
        for (size_t i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        pthread_barrier_destroy(&start);
        for (size_t i = 0; i < RACE_PAGES; i++)
            if (*(uint32_t *)(at + i * page) != THREADS * (i + 1))
                fail("page %zu holds %u after a race", i, *(uint32_t *)(at + i * page));
        if (counter("pages_allocated") != allocated + RACE_PAGES)
            fail("%" PRIu64 " pages for a race", counter("pages_allocated") - allocated);
        unmap(at, RACE_PAGES);
        close(file);
    }
    printf("lab: ok: threads that fault at once get one block\n");
}

// A mapping that is cut, moved and kept beyond its descriptor.
static void check_cutting(void)
{
    set_parameter("order", 4);
    const uint64_t live = counter("mappings_live");
    const uint64_t before = counter("clean_bytes");
    const int file = open_device(O_RDWR);
    char *at = map(file, 3, 60);
    close(file);
    for (size_t i = 0; i < 60; i++)
        at[i * page] = (char)i;
    unmap(at + 10 * page, 5);
    char *moved = mremap(at + 20 * page, 40 * page, 30 * page, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        fail("mremap");
    for (size_t i = 0; i < 30; i++)
        if (moved[i * page] != (char)(20 + i))
            fail("page %zu after a cut: %d", i, moved[i * page]);
    char *elsewhere = mmap(NULL, 30 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    moved = mremap(moved, 30 * page, 30 * page, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
    if (moved == MAP_FAILED || moved[29 * page] != 49)
        fail("mremap to another address");
    unmap(moved, 30);
    unmap(at, 20);
    if (counter("mappings_live") != live)
        fail("%" PRIu64 " mappings live", counter("mappings_live"));
    // Every page was unmapped once, 30 of them once more when they moved.
    const uint64_t cleaned = (counter("clean_bytes") - before) / page;
    if (cleaned != 90)
        fail("%" PRIu64 " pages cleaned, not 90", cleaned);
    printf("lab: ok: cut and moved mappings are cleaned once each\n");
}

static sigjmp_buf escape;

static void escaped(int signal)
{
    (void)signal;
    siglongjmp(escape, 1);
}

static void check_limits(void)
{
    const size_t pages = 64;

    set_parameter("order", 2);
    set_parameter("max_bytes", pages * page);
    const int file = open_device(O_RDWR);
    if (mmap(NULL, (pages + 1) * page, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED ||
        errno != ENOMEM)
        fail("a mapping above the limit");
    if (mmap(NULL, page, PROT_READ, MAP_SHARED, file, (off_t)(pages * page)) != MAP_FAILED ||
        errno != ENOMEM)
        fail("a mapping behind the limit");
    char *at = map(file, 0, pages);
    memset(at, 1, pages * page);
    // Another space: each alone is below the limit.
    set_parameter("order", 0);
    const int other = open_device(O_RDWR);
    char *more = map(other, 0, 1);
    const uint64_t refused = counter("faults_refused");
    struct sigaction action = {.sa_handler = escaped}, old;
    sigaction(SIGBUS, &action, &old);
    if (sigsetjmp(escape, 1) == 0) {
        *more = 1;
        fail("a fault above the limit gave memory");
    }
    sigaction(SIGBUS, &old, NULL);
    if (counter("faults_refused") <= refused)
        fail("no fault was counted as refused");
    set_parameter("max_bytes", (pages + 1) * page);
    *more = 1;
    unmap(more, 1);
    unmap(at, pages);
    close(other);
    close(file);
    set_parameter("max_bytes", 0);
    printf("lab: ok: limits hold, and what is refused can be tried again\n");
}

static void check_refusals(void)
{
    set_parameter("order", 0);
    if (try_parameter("order", ORDER_MAX + 1) != EINVAL)
        fail("order %d was taken", ORDER_MAX + 1);
    if (try_parameter("invalidate", 7) != EINVAL)
        fail("invalidate = 7 was taken");
    const int file = open_device(O_RDWR), reader = open_device(O_RDONLY);
    if (mmap(NULL, page, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED || errno != EINVAL)
        fail("a private mapping");
    if (mmap(NULL, page, PROT_WRITE, MAP_SHARED, reader, 0) != MAP_FAILED || errno != EACCES)
        fail("a writable mapping of a file open for reading");
    const struct farrow_shmem_range reserved = {.bytes = page, .reserved = 1};
    if (maintain(file, 1, page, FARROW_SHMEM_CLEAN) != EINVAL ||
        maintain(file, 0, 100, FARROW_SHMEM_CLEAN) != EINVAL ||
        maintain(file, 0, page, FARROW_SHMEM_OPS) != EINVAL ||
        maintain(file, -page, 2 * page, FARROW_SHMEM_CLEAN) != EINVAL ||
        ioctl(file, FARROW_SHMEM_MAINTAIN, &reserved) == 0 || errno != EINVAL ||
        ioctl(file, FARROW_SHMEM_MAINTAIN, NULL) == 0 || errno != EFAULT ||
        ioctl(file, _IO('F', 99)) == 0 || errno != ENOTTY)
        fail("an ioctl that is wrong was taken");
    if (maintain(reader, 0, page, FARROW_SHMEM_INVALIDATE) != EBADF)
        fail("a reader may invalidate");
    close(reader);
    close(file);
    printf("lab: ok: what is wrong is refused\n");
}

// Here is a guest, under an emulator that obeys the instruction.
static void check_all_caches(void)
{
#ifdef __x86_64__
    const int otherwise = EPERM, allowed = 0;
#else
    const int otherwise = EOPNOTSUPP, allowed = EOPNOTSUPP;
#endif
    const int expected[] = {EPERM, otherwise, allowed};
    const int file = open_device(O_RDONLY);
    const uint64_t before = counter("write_backs_of_all");

    if (try_parameter("all_caches", 3) != EINVAL)
        fail("all_caches = 3 was taken");
    for (unsigned long value = 0; value < sizeof expected / sizeof *expected; value++) {
        set_parameter("all_caches", value);
        if (write_back_all(file) != expected[value])
            fail("all_caches = %lu: %d, not %d", value, write_back_all(file), expected[value]);
    }
    if (ioctl(file, FARROW_SHMEM_WRITE_BACK_ALL, 1) == 0 || errno != EINVAL)
        fail("an argument of 1 was taken");
    if (counter("write_backs_of_all") != before + (allowed == 0))
        fail("%" PRIu64 " counted", counter("write_backs_of_all") - before);
    set_parameter("all_caches", 0);
    close(file);
    printf("lab: ok: all caches are written back where that is allowed\n");
}

// Samples and histogram hold each call since the last reset, and nothing else.
static void check_records(void)
{
    struct farrow_shmem_sample samples[8];
    char kind[32];
    uint64_t bound, calls, total = 0;

    set_parameter("order", 2);
    const int file = open_device(O_RDWR);
    char *at = map(file, 0, 12);
    for (size_t i = 0; i < 12; i++)
        at[i * page] = 1;
    const int reset = open("/sys/kernel/debug/farrow_shmem/reset", O_WRONLY | O_CLOEXEC);
    if (reset < 0 || write(reset, "1", 1) != 1)
        fail("reset");
    close(reset);
    if (maintain(file, 0, 6 * page, FARROW_SHMEM_CLEAN_INVALIDATE) != 0)
        fail("maintenance");
    unmap(at, 12);
    const int records = open("/sys/kernel/debug/farrow_shmem/samples", O_RDONLY | O_CLOEXEC);
    const ssize_t got = read(records, samples, sizeof samples);
    close(records);
    if (got != 5 * (ssize_t)sizeof *samples)
        fail("%zd B of samples, not 5", got);
    for (size_t i = 0; i < 5; i++) {
        const bool is_ioctl = i < 2;
        if (samples[i].cause != (is_ioctl ? FARROW_SHMEM_IOCTL : FARROW_SHMEM_UNMAP) ||
            samples[i].op != (is_ioctl ? FARROW_SHMEM_CLEAN_INVALIDATE : FARROW_SHMEM_CLEAN) ||
            samples[i].bytes != (i == 1 ? 2 : 4) * page || samples[i].pid != (uint32_t)getpid() ||
            (i > 0 && samples[i].at_ns < samples[i - 1].at_ns + samples[i - 1].duration_ns))
            fail("sample %zu: op %u, cause %u, %u B", i, samples[i].op, samples[i].cause,
                 samples[i].bytes);
    }
    FILE *histogram = fopen("/sys/kernel/debug/farrow_shmem/histogram", "re");
    while (histogram != NULL &&
           fscanf(histogram, "%31s %" SCNu64 " %" SCNu64, kind, &bound, &calls) == 3)
        total += calls;
    if (histogram == NULL || total != 5)
        fail("a histogram of %" PRIu64 " calls, not 5", total);
    fclose(histogram);
    close(file);
    printf("lab: ok: each call is recorded once\n");
}

// Under an emulator without caches all three leave the bytes alone; what is checked is the path.
static void check_maintenance(void)
{
    static const char *const names[] = {"clean_calls", "clean_invalidate_calls",
                                        "invalidate_calls"};

    set_parameter("order", 4);
    const int file = open_device(O_RDWR);
    char *at = map(file, 0, 64);
    at[0] = at[40 * page] = 7;
    for (uint32_t op = 0; op < FARROW_SHMEM_OPS; op++) {
        const uint64_t before = counter(names[op]);
        if (maintain(file, 0, 64 * page, op) != 0)
            fail("maintenance %u", op);
        // Two of four blocks are there.
        if (counter(names[op]) != before + 2)
            fail("%s: %" PRIu64 " more, not 2", names[op], counter(names[op]) - before);
    }
    if (maintain(file, 0, 0, FARROW_SHMEM_CLEAN) != 0 ||
        maintain(file, UINT64_MAX - page + 1, 0, FARROW_SHMEM_CLEAN) != 0)
        fail("an empty range was refused");
    set_parameter("invalidate", 1);
    const uint64_t before = counter("clean_invalidate_calls");
    unmap(at, 64);
    if (counter("clean_invalidate_calls") != before + 2)
        fail("invalidate = 1 does not reach unmap");
    set_parameter("invalidate", 0);
    close(file);
    printf("lab: ok: each kind of maintenance reaches each block once\n");
}

int main(void)
{
    page = page_bytes();
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_faults();
    check_sharing();
    check_races();
    check_cutting();
    check_limits();
    check_refusals();
    check_maintenance();
    check_all_caches();
    check_records();
    if (counter("blocks_live") != 0 || counter("spaces_live") != 0 ||
        counter("mappings_live") != 0 || counter("pages_allocated") != counter("pages_freed"))
        fail("%" PRIu64 " blocks live at the end", counter("blocks_live"));
    printf("lab: PASS\n");
    return 0;
}
