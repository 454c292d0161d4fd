// `a * 2 + a` with temporary arrays, as numpy does it: `arrays ELEMENTS COUNT`.
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    size_t n = strtoul(argv[1], 0, 10), count = strtoul(argv[2], 0, 10);
    double *a = malloc(n * sizeof *a);
    if (!a)
        return 1;
    for (size_t i = 0; i < n; i++)
        a[i] = (double)i;
    for (size_t round = 0; round < count; round++) {
        double *twice = malloc(n * sizeof *twice);
        for (size_t i = 0; i < n; i++)
            twice[i] = a[i] * 2;
        double *sum = malloc(n * sizeof *sum);
        for (size_t i = 0; i < n; i++)
            sum[i] = twice[i] + a[i];
        free(twice);
        free(sum);
    }
    return 0;
}
