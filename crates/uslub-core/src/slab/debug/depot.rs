//! The depot: each stack of a track once, in a table that only grows.
//!
//! | hash of an entry | state |
//! |---|---|
//! | 0 | empty |
//! | 1 | a thread writes the stack |
//! | other | the stack is there, and stays |
//!
//! The memory comes from the system at the first use. Any thread may add, without a lock.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::platform::Platform;

/// Addresses of a stack, at most.
pub const STACK_MAX: usize = 16;
/// Stacks in the depot, at most: 2.3 MB of address space, touched as it fills.
const STACKS: usize = 1 << 14;
/// Places that are looked at for one stack.
const PROBES: usize = 64;

struct Stack {
    /// 0 empty, 1 being written, otherwise the hash.
    hash: AtomicU64,
    len: AtomicU32,
    frames: [AtomicU64; STACK_MAX],
}

/// A hash of return addresses; 0 for none.
pub(super) fn hash(frames: &[usize]) -> u64 {
    frames.iter().fold(0, |hash, &at| {
        (hash ^ at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

/// The stacks of all tracks.
pub(crate) struct Depot(AtomicPtr<Stack>);

impl Depot {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    fn stacks(&self, platform: &impl Platform) -> Option<&[Stack]> {
        let bytes = platform.whole_pages(STACKS * size_of::<Stack>());
        // Acquire: pairs with the exchange below.
        let mut first = self.0.load(Acquire);
        if first.is_null() {
            let new = platform.map(bytes)?;
            // Release: zeroed memory; Acquire: another thread's.
            match (self.0).compare_exchange(null_mut(), new.as_ptr().cast(), Release, Acquire) {
                Ok(_) => first = new.as_ptr().cast(),
                Err(other) => {
                    // SAFETY: ours alone.
                    unsafe { platform.unmap(new, bytes) };
                    first = other;
                }
            }
        }
        let first = NonNull::new(first)?;
        // SAFETY: mapped above, zeroed, never unmapped.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), STACKS) })
    }

    /// The handle of a stack; 0 if there is no room.
    pub(super) fn add(&self, platform: &impl Platform, frames: &[usize]) -> u32 {
        if frames.is_empty() {
            return 0;
        }
        let hash = hash(frames) | 2;
        let Some(stacks) = self.stacks(platform) else {
            return 0;
        };
        for probe in 0..PROBES {
            let at = ((hash >> 8) as usize + probe) % STACKS;
            let stack = &stacks[at];
            // Acquire: pairs with the end of the writing.
            let mut found = stack.hash.load(Acquire);
            if found == 0 {
                // Acquire: as above.
                match stack.hash.compare_exchange(0, 1, Acquire, Acquire) {
                    Ok(_) => {
                        for (to, &from) in stack.frames.iter().zip(frames) {
                            // Relaxed: published by the hash.
                            to.store(from as u64, Relaxed);
                        }
                        // Relaxed: as above.
                        stack.len.store(frames.len() as u32, Relaxed);
                        // Release: publishes the frames.
                        stack.hash.store(hash, Release);
                        found = hash;
                    }
                    Err(other) => found = other,
                }
            }
            if found == hash {
                return at as u32 + 1;
            }
        }
        0
    }

    /// The frames of a stack; returns how many.
    pub(crate) fn get(&self, handle: u32, out: &mut [usize; STACK_MAX]) -> usize {
        // Acquire: as in `stacks`.
        let first = self.0.load(Acquire);
        if handle == 0 || first.is_null() || handle as usize > STACKS {
            return 0;
        }
        // SAFETY: an entry of the table.
        let stack = unsafe { &*first.add(handle as usize - 1) };
        // Acquire: pairs with the end of the writing.
        if stack.hash.load(Acquire) < 2 {
            return 0;
        }
        // Relaxed: published by the hash.
        let len = (stack.len.load(Relaxed) as usize).min(STACK_MAX);
        for (to, from) in out[..len].iter_mut().zip(&stack.frames) {
            // Relaxed: as above.
            *to = from.load(Relaxed) as usize;
        }
        len
    }
}
