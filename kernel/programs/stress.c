// SPDX-License-Identifier: Apache-2.0
// stress SEED OPERATIONS PROCESSES SECONDS: random maps, touches, cuts, moves, unmaps, maintenance,
// forks and parameter changes by several processes at once. The same seed makes each process draw
// the same operations; how they interleave is the scheduler's. Whether anything leaked is for the
// caller to see, from the counters, once this has ended.
#include <setjmp.h>
#include <signal.h>

#include "lab.h"

// Of the file: 16 MiB, four blocks of the largest order.
#define FILE_PAGES 4096
#define MAP_PAGES_MAX 512
#define MAPPINGS 8
#define FILES 3
#define TOUCHES 4

struct mapping {
    char *at;
    size_t first, pages;
};

static struct mapping mappings[MAPPINGS];
static int files[FILES];
static size_t page;
static uint64_t state;
static sigjmp_buf refused;
static uint64_t refusals;

static uint64_t draw(uint64_t below)
{
    // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 2685821657736338717ull >> 16) % below;
}

static void on_sigbus(int signal)
{
    (void)signal;
    siglongjmp(refused, 1);
}

// What a page holds depends on its place in the file alone, so that one in a wrong place shows.
static void touch_page(const struct mapping *mapping, size_t index, bool writes)
{
    const uint64_t stamp = 0xFA110000u + (uint64_t)(mapping->first + index);
    const size_t word = draw(2) ? 0 : page / sizeof stamp - 1;
    volatile uint64_t *at = (volatile uint64_t *)(mapping->at + index * page) + word;

    if (sigsetjmp(refused, 1) != 0) {
        refusals++;
        return;
    }
    const uint64_t found = *at;
    if (found != 0 && found != stamp)
        fail("page %zu of the file holds %" PRIx64, mapping->first + index, found);
    if (writes)
        *at = stamp;
}

static void touch(void)
{
    const struct mapping *mapping = &mappings[draw(MAPPINGS)];

    for (int i = 0; i < TOUCHES && mapping->at != NULL; i++) {
        const size_t index = draw(mapping->pages);
        touch_page(mapping, index, draw(2));
    }
}

static void reopen(void)
{
    int *file = &files[draw(FILES)];

    close(*file);
    *file = open_device(O_RDWR);
}

static void unmap(struct mapping *mapping)
{
    if (mapping->at != NULL && munmap(mapping->at, mapping->pages * page) != 0)
        fail("unmap %zu pages", mapping->pages);
    mapping->at = NULL;
}

static void map(void)
{
    struct mapping *mapping = &mappings[draw(MAPPINGS)];
    const size_t pages = 1 + draw(MAP_PAGES_MAX);
    const size_t first = draw(FILE_PAGES - pages);
    const int flags = MAP_SHARED | (draw(4) ? 0 : MAP_POPULATE);
    const int file = files[draw(FILES)];

    unmap(mapping);
    void *at = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, flags, file,
                    (off_t)(first * page));
    if (at == MAP_FAILED) {
        // Another process may have lowered the limit.
        if (errno != ENOMEM)
            fail("map %zu pages at %zu", pages, first);
        refusals++;
        return;
    }
    *mapping = (struct mapping){at, first, pages};
}

// Takes a piece out of a mapping: its head, its tail, or something between.
static void cut(void)
{
    struct mapping *mapping = &mappings[draw(MAPPINGS)];
    struct mapping *rest = &mappings[draw(MAPPINGS)];

    if (mapping->at == NULL || mapping->pages < 3 || rest == mapping)
        return;
    const size_t from = draw(mapping->pages - 1);
    const size_t pages = 1 + draw(mapping->pages - from - 1);
    if (munmap(mapping->at + from * page, pages * page) != 0)
        fail("unmap a part");
    const size_t after = mapping->pages - from - pages;
    unmap(rest);
    if (after > 0)
        *rest = (struct mapping){mapping->at + (from + pages) * page,
                                 mapping->first + from + pages, after};
    mapping->pages = from;
    if (from == 0)
        mapping->at = NULL;
}

static void move(void)
{
    struct mapping *mapping = &mappings[draw(MAPPINGS)];

    if (mapping->at == NULL)
        return;
    const size_t bytes = mapping->pages * page;
    void *target = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *at = mremap(mapping->at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (at == MAP_FAILED)
        fail("move %zu pages", mapping->pages);
    mapping->at = at;
}

static void maintain_some(void)
{
    const uint64_t first = draw(FILE_PAGES), pages = draw(2 * MAP_PAGES_MAX);

    errno = maintain(files[draw(FILES)], first * page, pages * page, draw(FARROW_SHMEM_OPS));
    if (errno != 0)
        fail("maintain %" PRIu64 " pages at %" PRIu64, pages, first);
}

// Refused or not: the others change what is allowed meanwhile.
static void maintain_all(void)
{
    errno = write_back_all(files[draw(FILES)]);
    if (errno != 0 && errno != EPERM && errno != EOPNOTSUPP)
        fail("write back all caches");
}

static void fork_and_touch(void)
{
    int status;
    const pid_t child = fork();

    if (child < 0)
        fail("fork");
    if (child == 0) {
        touch();
        if (draw(2))
            cut();
        fflush(stdout);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("a child ended with status %x", status);
}

static void change_parameter(void)
{
    static const unsigned long limits[] = {8ul << 20, 24ul << 20, 64ul << 20};

    switch (draw(5)) {
    case 0:
        set_parameter("invalidate", draw(2));
        break;
    case 1:
        set_parameter("max_bytes", limits[draw(3)]);
        break;
    case 2:
        set_parameter("all_caches", draw(3));
        break;
    default:
        set_parameter("order", draw(ORDER_MAX + 1));
        break;
    }
}

static void do_wrong(void)
{
    const int file = files[draw(FILES)];

    if (try_parameter("order", ORDER_MAX + 1 + draw(1000)) != EINVAL)
        fail("an order above the largest was taken");
    if (mmap(NULL, page, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED)
        fail("a private mapping was made");
    if (maintain(file, 1 + draw(page - 1), page, FARROW_SHMEM_CLEAN) != EINVAL)
        fail("a range that is not aligned was maintained");
}

static void work(uint64_t seed, size_t operations)
{
    state = seed;
    for (int i = 0; i < 8; i++)
        draw(1);
    for (int i = 0; i < FILES; i++)
        files[i] = open_device(O_RDWR);
    for (size_t i = 0; i < operations; i++) {
        const uint64_t drawn = draw(100);
        if (drawn < 34)
            touch();
        else if (drawn < 56)
            map();
        else if (drawn < 66)
            unmap(&mappings[draw(MAPPINGS)]);
        else if (drawn < 74)
            cut();
        else if (drawn < 78)
            move();
        else if (drawn < 83)
            maintain_some();
        else if (drawn < 84)
            maintain_all();
        else if (drawn < 92)
            change_parameter();
        else if (drawn < 96)
            reopen();
        else if (drawn < 98)
            fork_and_touch();
        else
            do_wrong();
    }
    // Half of them leave what they have to the kernel to take down.
    if (seed % 2)
        for (int i = 0; i < MAPPINGS; i++)
            unmap(&mappings[i]);
    printf("lab: ok: seed %" PRIu64 ": %zu operations, %" PRIu64 " refused for want of room\n",
           seed, operations, refusals);
    fflush(stdout);
}

int main(int count, char **words)
{
    const struct sigaction action = {.sa_handler = on_sigbus};

    if (count != 5)
        fail("usage: %s SEED OPERATIONS PROCESSES SECONDS", words[0]);
    const size_t seed = number(words[1], "SEED"), operations = number(words[2], "OPERATIONS");
    const size_t processes = number(words[3], "PROCESSES"), seconds = number(words[4], "SECONDS");
    bool has_failed = false;

    if (processes == 0)
        fail("no processes");
    page = page_bytes();
    sigaction(SIGBUS, &action, NULL);
    set_parameter("max_bytes", 24ul << 20);
    for (size_t i = 0; i < processes; i++) {
        const pid_t process = fork();
        if (process < 0)
            fail("fork");
        if (process == 0) {
            alarm((unsigned)seconds);
            work(seed * processes + i + 1, operations / processes);
            exit(0);
        }
    }
    for (size_t i = 0; i < processes; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            printf("lab: FAIL: a process of the stress ended with status %x\n", status);
            has_failed = true;
        }
    }
    return has_failed;
}
