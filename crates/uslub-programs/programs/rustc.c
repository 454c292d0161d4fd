/*
 * rustc without an allocator of its own.
 *
 * The executable of the usual toolchains defines malloc itself (jemalloc), and
 * an executable's symbols come before those of a preloaded library. The whole
 * compiler is in librustc_driver; this calls the same entry of it.
 * RUSTC_MAIN is that entry's symbol.
 */
extern unsigned char rustc_main(void) __asm__(RUSTC_MAIN);

int main(void)
{
    return rustc_main();
}
