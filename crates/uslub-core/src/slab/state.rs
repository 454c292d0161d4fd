//! A slab: pages cut into slots of one size, and the state of these slots.
//!
//! The state of a slab is one word, changed in one atomic step:
//!
//! ```text
//!   bit 63   62 … 32   31 … 16   15 … 0
//!   frozen   (zero)    inuse     head: offset/8 of the first object of the freelist, or NULL
//! ```
//!
//! A slot is in use (by the program or in a sheaf), in the freelist, or *fresh*: never handed out
//! since the slab was last empty, and in no list. Fresh slots are those that the iterator has not
//! reached; they need no link and are not touched.
//!
//! | state | listed | inuse | a free into it |
//! |---|---|---|---|
//! | partial | on the node's list | < objects | pushes; the last one may discard the slab |
//! | isolated | no (a refill owns it) | < objects | pushes |
//! | full | no | = objects | pushes and lists the slab as partial |
//! | frozen (a check of a debugged slab failed) | no | = objects | leaks |
//!
//! Only the owner of a slab takes slots out. A thread owns the slab if the slab is on the list and
//! the thread holds the list lock, if it isolated the slab under that lock, or if the slab is new.
//! Any thread may push. So between the owner's read and its update only pushes happen, and a
//! compare-and-swap of the word detects each of them. The same protocol works with each change made
//! under a lock of the slab ([`Slab::compare_exchange_locked`]).

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::descriptor::Descriptor;
use crate::policy::CAS_PAUSES;
use crate::sync::atomic;

/// No slab: the end of a list.
pub const NO_SLAB: u32 = u32::MAX;

const NO_HEAD: u64 = 0xffff;
const FROZEN: u64 = 1 << 63;

/// A value of the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    /// An empty freelist, with `inuse` slots in use.
    #[inline]
    pub const fn without_list(inuse: u32) -> Self {
        Self((inuse as u64) << 16 | NO_HEAD)
    }

    /// Byte offset of the first object of the freelist.
    #[inline]
    pub const fn head(self) -> Option<usize> {
        let head = self.0 & 0xffff;
        if head == NO_HEAD {
            None
        } else {
            Some(head as usize * 8)
        }
    }

    /// Slots in use.
    #[inline]
    pub const fn inuse(self) -> u32 {
        (self.0 >> 16) as u32 & 0xffff
    }

    /// Whether the slab failed a check and must not change.
    #[inline]
    pub const fn frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// The same state of a slab that failed a check.
    #[inline]
    pub const fn freeze(self) -> Self {
        Self(self.0 | FROZEN)
    }

    /// The same state with another freelist and another number of slots in use.
    #[inline]
    pub const fn with(self, head: Option<usize>, inuse: u32) -> Self {
        let head = match head {
            Some(offset) => (offset / 8) as u64,
            None => NO_HEAD,
        };
        Self(self.0 & FROZEN | (inuse as u64) << 16 | head)
    }
}

/// A slab, named by the descriptor of its first page.
pub type Slab = Descriptor;

impl Descriptor {
    /// The current state.
    #[inline]
    pub fn state(&self) -> State {
        // Acquire: the links of the freelist in the state.
        State(self.state.load(Acquire))
    }

    /// Sets the state of a slab that no other thread can reach.
    #[inline]
    pub fn set_state(&self, state: State) {
        // Release: the next owner must see the slab's links.
        self.state.store(state.0, Release);
    }

    /// Changes the state if it is still `old`; may fail spuriously.
    #[inline]
    pub fn compare_exchange(&self, old: State, new: State) -> Result<(), State> {
        // Release: the links that this thread wrote. Acquire: the links that other threads wrote,
        // also on failure, since the caller continues with the returned state.
        self.state
            .compare_exchange_weak(old.0, new.0, AcqRel, Acquire)
            .map(drop)
            .map_err(State)
            .inspect_err(|_| stand_back())
    }

    /// As [`compare_exchange`](Self::compare_exchange), but under a lock of the slab: the kernel's
    /// way on machines without a double-word compare-and-swap, kept for comparison. Waits for the
    /// lock.
    pub fn compare_exchange_locked(&self, old: State, new: State) -> Result<(), State> {
        // Acquire: see the last holder's changes.
        while self
            .lock
            .compare_exchange_weak(0, 1, Acquire, Relaxed)
            .is_err()
        {
            // Relaxed: only waits; the exchange acquires.
            while self.lock.load(Relaxed) != 0 {
                atomic::spin_loop();
            }
        }
        let now = self.state();
        if now == old {
            self.set_state(new);
        }
        // Release: the next holder sees this change.
        self.lock.store(0, Release);
        if now == old { Ok(()) } else { Err(now) }
    }

    /// Unlocks the lock in the child of a fork, where its holder may not exist.
    pub fn reset_lock(&self) {
        // Relaxed: the child has one thread.
        self.lock.store(0, Relaxed);
    }
}

/// Backs off after a failed compare-and-swap: the winner's next changes then find the slab's cache
/// line in its own CPU's cache, and so does our next change after them.
#[inline]
fn stand_back() {
    (0..CAS_PAUSES).for_each(|_| atomic::spin_loop());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_parts_apart() {
        for inuse in [0, 1, 32767] {
            let s = State::without_list(inuse);
            assert_eq!((s.head(), s.inuse(), s.frozen()), (None, inuse, false));
            for head in [0, 8, 256 * 1024 - 8] {
                let t = s.with(Some(head), inuse);
                assert_eq!((t.head(), t.inuse()), (Some(head), inuse));
            }
        }
    }
}
