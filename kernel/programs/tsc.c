// SPDX-License-Identifier: Apache-2.0
// tsc: the frequency of this machine's time stamp counter in kHz. Runs on the host, for x86-64
// guests, whose counter is the host's: what they measure of it while they boot a busy host falsifies.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
    uint64_t ticks, ns;
};

// Of many looks at both clocks the one with the least between them: nobody took the CPU away then.
static struct moment look(void)
{
    struct moment best = {0, 0};
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 1000; i++) {
        struct timespec now;
        const uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &now);
        const uint64_t after = __rdtsc();
        if (after - before < least) {
            least = after - before;
            best.ticks = before + least / 2;
            best.ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        }
    }
    return best;
}

int main(void)
{
    const struct timespec pause = {.tv_nsec = 200000000};
    const struct moment first = look();

    nanosleep(&pause, NULL);
    const struct moment second = look();
    printf("%.0f\n", (double)(second.ticks - first.ticks) * 1e6 / (double)(second.ns - first.ns));
    return 0;
}
