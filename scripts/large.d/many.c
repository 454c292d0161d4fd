// Many large objects, every other one freed, again and again: `many KIB OBJECTS COUNT`. Fails if the
// process has too many mappings.
#include <stdio.h>
#include <stdlib.h>

static size_t mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    size_t lines = 0;
    for (int c; maps && (c = getc(maps)) != EOF;)
        lines += c == '\n';
    return lines;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t bytes = strtoul(argv[1], 0, 10) * 1024;
    size_t objects = strtoul(argv[2], 0, 10), count = strtoul(argv[3], 0, 10);
    char **all = calloc(objects, sizeof *all);
    for (size_t round = 0; round < count; round++) {
        for (size_t i = 0; i < objects; i++) {
            if (!all[i] && !(all[i] = malloc(bytes)))
                return 1;
            all[i][0] = all[i][bytes - 1] = (char)(i + 1);
        }
        for (size_t i = round % 2; i < objects; i += 2) {
            if (all[i][0] != (char)(i + 1) || all[i][bytes - 1] != (char)(i + 1))
                return 1;
            free(all[i]);
            all[i] = 0;
        }
        if (mappings() >= 4096)
            return 3;
    }
    return 0;
}
