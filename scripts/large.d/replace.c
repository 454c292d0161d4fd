// Buffers of random sizes, replaced at random and touched: `replace BUFFERS LEAST_KIB MOST_KIB COUNT`.
#include "touch.h"

static uint64_t state = 88172645463325252;

static uint64_t dice(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    size_t buffers = strtoul(argv[1], 0, 10);
    size_t least = strtoul(argv[2], 0, 10) * 1024;
    size_t most = strtoul(argv[3], 0, 10) * 1024;
    size_t count = strtoul(argv[4], 0, 10);
    char **all = calloc(buffers, sizeof *all);
    for (size_t i = 0; i < count; i++) {
        char **buffer = &all[dice() % buffers];
        size_t bytes = least + dice() % (most - least);
        free(*buffer);
        *buffer = malloc(bytes);
        if (!*buffer)
            return 1;
        for (size_t at = first_touch(*buffer, 0); at < bytes; at += PAGE)
            (*buffer)[at] = 1;
    }
    return 0;
}
