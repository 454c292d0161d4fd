// A statically linked program that holds objects of rare sizes, writes the library's own figures, and waits to be read.
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <unistd.h>

static void *kept[3][3000];

int main(int argc, char **)
{
    static const size_t sizes[] = { 176, 368, 20000 };
    static const int counts[] = { 3000, 3000, 30 };
    setvbuf(stdin, nullptr, _IONBF, 0);
    setvbuf(stdout, nullptr, _IONBF, 0);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < counts[k]; i++)
            if (!(kept[k][i] = malloc(sizes[k])))
                return 1;
    // A third goes.
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < counts[k]; i += 3)
            free(kept[k][i]);
    if (dup2(1, 2) != 2)
        return 1;
    malloc_stats();
    puts("ready");
    getchar();
    // With an argument it leaves a core file.
    if (argc > 1)
        abort();
    return 0;
}
