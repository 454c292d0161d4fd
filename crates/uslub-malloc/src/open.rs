//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! With this flag the loader searches a library and what it links before the preloaded libraries,
//! so the library binds to the C library's malloc. Then the program frees objects with another
//! malloc than the one that allocated them. So the flag is cleared. The library's other names then
//! resolve as without the flag: if the program defines the name too, the program's definition is
//! used.
//!
//! The loader derives the search path and the namespace from the caller's address, so the call is a
//! jump. `dlmopen` is left alone: a new namespace has its own C library, and everything in it uses
//! that malloc.

use core::ffi::{c_char, c_int, c_void};

use crate::next::{self, Next};

/// The GNU library's `RTLD_DEEPBIND`. musl has no such flag, and ignores the bit.
const DEEPBIND: c_int = 8;

static DLOPEN: Next = Next::new(c"dlopen");

/// Looks up the next definition.
pub(crate) fn prepare() {
    next::resolve(&[&DLOPEN]);
}

/// Stands for the next definition if there is none.
extern "C" fn nothing(_file: *const c_char, _mode: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

extern "C" fn next_dlopen() -> *const c_void {
    let otherwise = nothing as *const c_void;
    DLOPEN.get().map_or(otherwise, |next| next.as_ptr())
}

/// Loads a library, never with `RTLD_DEEPBIND`.
///
/// # Safety
///
/// As for the C library's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "and esi, {kept}",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        next = sym next_dlopen,
        kept = const !DEEPBIND,
    )
}

/// Loads a library, never with `RTLD_DEEPBIND`.
///
/// # Safety
///
/// As for the C library's function.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "and w1, w1, #{kept}",
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {next}",
        "mov x16, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x16",
        next = sym next_dlopen,
        kept = const !DEEPBIND as u32,
    )
}

/// Loads a library, never with `RTLD_DEEPBIND`.
///
/// # Safety
///
/// As for the C library's function.
#[cfg(target_arch = "riscv64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "andi a1, a1, {kept}",
        "addi sp, sp, -32",
        "sd a0, 0(sp)",
        "sd a1, 8(sp)",
        "sd ra, 16(sp)",
        "call {next}",
        "mv t1, a0",
        "ld ra, 16(sp)",
        "ld a1, 8(sp)",
        "ld a0, 0(sp)",
        "addi sp, sp, 32",
        "jr t1",
        next = sym next_dlopen,
        kept = const !DEEPBIND,
    )
}
