//! Checkers of memory that run this process: what they are told of objects.
//!
//! | checker | found by | an event is |
//! |---|---|---|
//! | valgrind | a request that only it answers | a request |
//! | AddressSanitizer | a symbol of its runtime | a call: bytes are poisoned or not |
//! | ThreadSanitizer | a symbol of its runtime | a call: a free is before the next allocation |
//!
//! A request of valgrind is a sequence of instructions without effect on a processor. The symbols
//! are weak: without the runtime they are null. [`look`] runs at the set-up of the faces whose
//! objects no checker knows by itself. Any thread may call the rest.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use uslub_core::platform::{Block, Watch};

use crate::arch::valgrind;
use crate::environment::environment;

/// Numbers of valgrind's requests. Those of its tool memcheck carry the letters MC.
mod request {
    pub(super) const IS_VALGRIND: usize = 0x1001;
    pub(super) const MALLOC_LIKE: usize = 0x1301;
    pub(super) const FREE_LIKE: usize = 0x1302;
    pub(super) const RESIZE: usize = 0x130b;
    pub(super) const ERRORS: usize = 0x1801;
    pub(super) const NO_ACCESS: usize = 0x4d43_0000;
    pub(super) const UNDEFINED: usize = 0x4d43_0001;
    pub(super) const DEFINED: usize = 0x4d43_0002;
}

const NOBODY: u32 = 0;
const VALGRIND: u32 = 1;
const ADDRESS: u32 = 2;
const THREAD: u32 = 3;

static CHECKER: AtomicU32 = AtomicU32::new(NOBODY);

/// The environment variable by which a program asks that a checker be told; any value but 0.
const ASKED: &str = "USLUB_WATCH";

/// Finds the checker, if the environment asks for it. Call it at set-up, before there are caches.
pub fn look() {
    if environment(ASKED).is_none_or(|value| value == b"0") {
        return;
    }
    let checker = if is_on_valgrind() {
        VALGRIND
    } else if symbols::poison().is_some() && symbols::unpoison().is_some() {
        ADDRESS
    } else if symbols::acquire().is_some() && symbols::release().is_some() {
        THREAD
    } else {
        NOBODY
    };
    // Relaxed: set-up runs on one thread.
    CHECKER.store(checker, Relaxed);
}

/// Whether valgrind runs this process.
pub(crate) fn is_on_valgrind() -> bool {
    valgrind([request::IS_VALGRIND, 0, 0, 0, 0, 0]) != 0
}

pub(crate) fn is_watched() -> bool {
    // Relaxed: constant since the set-up.
    CHECKER.load(Relaxed) != NOBODY
}

/// Tells the checker of an event.
#[cold]
#[inline(never)]
pub(crate) fn tell(event: Watch) {
    // Relaxed: as above.
    match CHECKER.load(Relaxed) {
        VALGRIND => tell_valgrind(event),
        ADDRESS => tell_address_sanitizer(event),
        THREAD => tell_thread_sanitizer(event),
        _ => {}
    }
}

fn tell_valgrind(event: Watch) {
    let range = |number, block: Block| {
        valgrind([number, block.start as usize, block.bytes, 0, 0, 0]);
    };
    match event {
        // Errors of this thread are not reported until `Leave`.
        Watch::Enter => _ = valgrind([request::ERRORS, 1, 0, 0, 0, 0]),
        Watch::Leave => _ = valgrind([request::ERRORS, usize::MAX, 0, 0, 0, 0]),
        Watch::Open(_) => {}
        Watch::Close(block) => range(request::NO_ACCESS, block),
        Watch::Gone(block) => range(request::UNDEFINED, block),
        Watch::Alloc {
            object,
            slot,
            is_constructed,
        } => {
            let left = object.start as usize - slot.start as usize;
            let (start, bytes) = (object.start as usize, object.bytes);
            range(request::NO_ACCESS, slot);
            valgrind([request::MALLOC_LIKE, start, bytes, left, 0, 0]);
            if is_constructed {
                range(request::DEFINED, object);
            }
        }
        Watch::Free { object, left } => {
            valgrind([request::FREE_LIKE, object as usize, left, 0, 0, 0]);
        }
        Watch::Resize { object, old, slot } => {
            let left = object.start as usize - slot.start as usize;
            let start = object.start as usize;
            valgrind([request::RESIZE, start, old, object.bytes, left, 0]);
        }
    }
}

fn tell_address_sanitizer(event: Watch) {
    let (Some(poison), Some(unpoison)) = (symbols::poison(), symbols::unpoison()) else {
        return;
    };
    // SAFETY: the runtime marks these bytes of ours in memory of its own.
    let poison = |block: Block| unsafe { poison(block.start, block.bytes) };
    // SAFETY: as above.
    let unpoison = |block: Block| unsafe { unpoison(block.start, block.bytes) };
    match event {
        Watch::Open(block) | Watch::Gone(block) => unpoison(block),
        Watch::Close(block) => poison(block),
        Watch::Alloc { object, slot, .. } => {
            poison(slot);
            unpoison(object);
        }
        // The allocator fills the slot first, which `Close` follows.
        Watch::Free { .. } | Watch::Enter | Watch::Leave => {}
        Watch::Resize { object, slot, .. } => {
            poison(slot);
            unpoison(object);
        }
    }
}

fn tell_thread_sanitizer(event: Watch) {
    let (Some(acquire), Some(release)) = (symbols::acquire(), symbols::release()) else {
        return;
    };
    match event {
        // The runtime does not look at accesses of this thread until `Leave`.
        Watch::Enter => ignore(symbols::ignore_begin()),
        Watch::Leave => ignore(symbols::ignore_end()),
        // SAFETY: the runtime keeps a clock for the address.
        Watch::Alloc { object, .. } => unsafe { acquire(object.start) },
        // SAFETY: as above.
        Watch::Free { object, .. } => unsafe { release(object) },
        _ => {}
    }
}

fn ignore(function: Option<symbols::Plain>) {
    if let Some(function) = function {
        // SAFETY: changes a counter of this thread in the runtime.
        unsafe { function() };
    }
}

/// Functions of sanitizers' runtimes; null without them.
mod symbols {
    use crate::arch::weak;

    type OfRange = unsafe extern "C" fn(*mut u8, usize);
    type OfAddress = unsafe extern "C" fn(*mut u8);
    pub(super) type Plain = unsafe extern "C" fn();

    pub(super) fn poison() -> Option<OfRange> {
        let address: usize = weak!("__asan_poison_memory_region");
        // SAFETY: null, or a function of this type.
        unsafe { core::mem::transmute(address) }
    }

    pub(super) fn unpoison() -> Option<OfRange> {
        let address: usize = weak!("__asan_unpoison_memory_region");
        // SAFETY: as above.
        unsafe { core::mem::transmute(address) }
    }

    pub(super) fn acquire() -> Option<OfAddress> {
        let address: usize = weak!("__tsan_acquire");
        // SAFETY: as above.
        unsafe { core::mem::transmute(address) }
    }

    pub(super) fn release() -> Option<OfAddress> {
        let address: usize = weak!("__tsan_release");
        // SAFETY: as above.
        unsafe { core::mem::transmute(address) }
    }

    pub(super) fn ignore_begin() -> Option<Plain> {
        let address: usize = weak!("__tsan_ignore_thread_begin");
        // SAFETY: as above.
        unsafe { core::mem::transmute(address) }
    }

    pub(super) fn ignore_end() -> Option<Plain> {
        let address: usize = weak!("__tsan_ignore_thread_end");
        // SAFETY: as above.
        unsafe { core::mem::transmute(address) }
    }
}
