/* Objects of another malloc, by `operator new` of the library own_new_lib.c, before main and in it. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

void *_Znwm(size_t bytes);
void _ZdlPv(void *object);
int own_new_freed(void);

__attribute__((constructor)) static void before_main(void)
{
    _ZdlPv(_Znwm(24));
}

int main(void)
{
    for (int i = 0; i < 100; i++) {
        void *other = _Znwm(40), *small = malloc(100), *huge = malloc(1 << 20);
        if (malloc_usable_size(other) != 40) {
            printf("own_new: size %zu\n", malloc_usable_size(other));
            return 1;
        }
        _ZdlPv(other);
        free(huge);
        free(small);
    }
    if (own_new_freed() != 101) {
        printf("own_new: %d objects came back\n", own_new_freed());
        return 1;
    }
    puts("own_new: ok");
    return 0;
}
