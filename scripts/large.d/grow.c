// A buffer grows by `realloc` from 4 KiB, half as much more each time, and shrinks again:
// `grow MOST_MIB COUNT`.
#include "touch.h"

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    size_t most = strtoul(argv[1], 0, 10) << 20, count = strtoul(argv[2], 0, 10);
    for (size_t round = 0; round < count; round++) {
        size_t bytes = 4096;
        char *buffer = malloc(bytes);
        while (bytes < most) {
            size_t more = bytes + bytes / 2;
            buffer = realloc(buffer, more);
            for (size_t at = first_touch(buffer, bytes); at < more; at += PAGE)
                buffer[at] = 1;
            bytes = more;
        }
        while (bytes > 8192) {
            bytes = bytes / 3 * 2;
            buffer = realloc(buffer, bytes);
            buffer[bytes - 1] = 1;
        }
        free(buffer);
    }
    return 0;
}
