// Threads that allocate, touch and free objects of random sizes, LIVE at a time:
// `threads THREADS LIVE FROM TO STEPS`, FROM and TO in bytes; a step is 100 objects of each thread.
#include <pthread.h>
#include <stdlib.h>

enum { LIVE_MOST = 256 };

static size_t live, from, to, steps;

static void *work(void *seed) {
    char *objects[LIVE_MOST];
    unsigned random = (unsigned)(size_t)seed;
    for (size_t done = 0; done < steps * 100; done += live) {
        for (size_t i = 0; i < live; i++) {
            random = random * 1103515245 + 12345;
            objects[i] = malloc(from + (random >> 8) % (to - from + 1));
            if (!objects[i])
                abort();
            *(volatile char *)objects[i] = 1;
        }
        for (size_t i = 0; i < live; i++)
            free(objects[i]);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 6)
        return 2;
    size_t threads = strtoul(argv[1], 0, 10);
    live = strtoul(argv[2], 0, 10);
    from = strtoul(argv[3], 0, 10);
    to = strtoul(argv[4], 0, 10);
    steps = strtoul(argv[5], 0, 10);
    if (threads == 0 || threads > 64 || live == 0 || live > LIVE_MOST || from > to)
        return 2;
    pthread_t all[64];
    for (size_t i = 0; i < threads; i++)
        if (pthread_create(&all[i], 0, work, (void *)(i + 1)))
            return 1;
    for (size_t i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    return 0;
}
