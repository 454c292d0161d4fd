//! The example as a program for a machine without an operating system.
//!
//! A boot loader would call [`kernel_main`]. The console is a ring of bytes in memory, as kernels
//! have one before they know their screen.

#![no_std]
#![no_main]

mod demo;
mod platform;

use core::fmt::{Result, Write};
use core::panic::PanicInfo;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicUsize};

const RING: usize = 4096;

/// What was said last.
#[unsafe(no_mangle)]
pub static CONSOLE: [AtomicU8; RING] = [const { AtomicU8::new(0) }; RING];
static SAID: AtomicUsize = AtomicUsize::new(0);

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> Result {
        for byte in text.bytes() {
            // Relaxed: there is one CPU.
            CONSOLE[SAID.fetch_add(1, Relaxed) % RING].store(byte, Relaxed);
        }
        Ok(())
    }
}

/// Runs the example; whether all went well.
#[unsafe(no_mangle)]
pub extern "C" fn kernel_main() -> bool {
    demo::run(&mut Console).is_ok()
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "{info}");
    loop {
        core::hint::spin_loop();
    }
}
