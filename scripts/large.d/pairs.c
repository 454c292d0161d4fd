// Pairs of malloc, touch, free: `pairs KIB LIVE COUNT`.
#include "touch.h"

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t bytes = strtoul(argv[1], 0, 10) * 1024;
    size_t live = strtoul(argv[2], 0, 10);
    size_t count = strtoul(argv[3], 0, 10);
    char **objects = calloc(live, sizeof *objects);
    for (size_t i = 0; i < count; i++) {
        char **object = &objects[i % live];
        free(*object);
        *object = malloc(bytes);
        if (!*object)
            return 1;
        for (size_t at = first_touch(*object, 0); at < bytes; at += PAGE)
            (*object)[at] = 1;
    }
    return 0;
}
