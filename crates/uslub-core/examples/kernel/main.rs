//! The core in a kernel: a static array is all the memory there is.
//!
//! `platform.rs` and `demo.rs` use `core` only. Here they run as an ordinary program; `bare.rs`
//! makes a program for a machine without an operating system of the same two files (`.ci/no-std`).

mod demo;
mod platform;

/// What the example says goes to standard output, as it comes.
struct Console;

impl core::fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        print!("{text}");
        Ok(())
    }
}

fn main() -> core::fmt::Result {
    demo::run(&mut Console)
}
