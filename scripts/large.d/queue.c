// One thread fills buffers, another reads and frees them: `queue KIB COUNT`.
#include <pthread.h>
#include "touch.h"

enum { PLACES = 16 };

static char *places[PLACES];
static size_t head, tail, bytes, count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

static void *read_all(void *unused) {
    (void)unused;
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        while (head == tail)
            pthread_cond_wait(&moved, &lock);
        char *buffer = places[tail++ % PLACES];
        pthread_cond_signal(&moved);
        pthread_mutex_unlock(&lock);
        for (size_t at = first_touch(buffer, 0); at < bytes; at += PAGE)
            if (buffer[at] != 1)
                abort();
        free(buffer);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    bytes = strtoul(argv[1], 0, 10) * 1024;
    count = strtoul(argv[2], 0, 10);
    pthread_t reader;
    if (pthread_create(&reader, 0, read_all, 0))
        return 1;
    for (size_t i = 0; i < count; i++) {
        char *buffer = malloc(bytes);
        for (size_t at = first_touch(buffer, 0); at < bytes; at += PAGE)
            buffer[at] = 1;
        pthread_mutex_lock(&lock);
        while (head - tail == PLACES)
            pthread_cond_wait(&moved, &lock);
        places[head++ % PLACES] = buffer;
        pthread_cond_signal(&moved);
        pthread_mutex_unlock(&lock);
    }
    pthread_join(reader, 0);
    return 0;
}
