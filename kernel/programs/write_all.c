// SPDX-License-Identifier: Apache-2.0
// write_all BYTES TIMES: maps BYTES of the device, writes every word, unmaps; TIMES times.
#include "lab.h"

static void write_words(volatile uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        words[i] = i;
}

int main(int count, char **words)
{
    return sweep(count, words, write_words);
}
