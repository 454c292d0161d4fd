//! Sources for pools: so many elements and no more, and what tests of pools do with them.

use std::collections::HashSet;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle, yield_now};

use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, Source};

use crate::support::{Slub, Virtual, assert_all_is_given_back, sleep};

/// A pool over one.
pub type Pool<'a> = Mempool<'a, Virtual, &'a Budget>;

/// A source that has so many elements and no more, and knows who has them.
#[derive(Default)]
pub struct Budget(Mutex<State>);

#[derive(Default)]
struct State {
    left: usize,
    live: HashSet<usize>,
    calls: Vec<u32>,
}

impl Budget {
    /// A source with so many.
    pub fn of(left: usize) -> Self {
        let budget = Self::default();
        budget.set(left);
        budget
    }

    /// Sets how many it has.
    pub fn set(&self, left: usize) {
        self.0.lock().unwrap().left = left;
    }

    /// How many it has.
    pub fn left(&self) -> usize {
        self.0.lock().unwrap().left
    }

    /// How many are not freed yet.
    pub fn live(&self) -> usize {
        self.0.lock().unwrap().live.len()
    }

    /// The flags of the calls since the last look.
    pub fn take_calls(&self) -> Vec<u32> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }
}

impl Source for Budget {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        let mut state = self.0.lock().unwrap();
        state.calls.push(gfp.bits());
        if state.left == 0 {
            return null_mut();
        }
        state.left -= 1;
        let element = Box::into_raw(Box::new(0u64)).cast();
        assert!(state.live.insert(element as usize));
        element
    }

    /// What is freed is gone: the budget does not grow.
    unsafe fn free(&self, element: *mut u8) {
        let mut state = self.0.lock().unwrap();
        assert!(state.live.remove(&(element as usize)), "freed twice");
        // SAFETY: made above, and live until now.
        drop(unsafe { Box::from_raw(element.cast::<u64>()) });
    }
}

/// Frees an element.
pub fn free(pool: &Pool<'_>, element: *mut u8) {
    // SAFETY: each test frees what it has, once.
    unsafe { pool.free(element) }
}

/// Frees elements.
pub fn free_bulk(pool: &Pool<'_>, elements: &[*mut u8]) -> usize {
    // SAFETY: each test frees what it has, once.
    unsafe { pool.free_bulk(elements) }
}

/// Marks an element as in use, by one thread at a time.
pub fn use_it(element: *mut u8) {
    let word = element.cast::<AtomicBool>();
    // SAFETY: ours, aligned to 8 bytes, and its bytes are 0 or 1. SeqCst: nothing here is measured.
    unsafe {
        assert!(!(*word).swap(true, SeqCst), "two threads have it");
        yield_now();
        assert!((*word).swap(false, SeqCst));
    }
}

/// Fails the test unless all has come back, and nobody waited in vain.
pub fn assert_balanced(a: &Slub, budget: &Budget) {
    assert_eq!(budget.live(), 0, "elements are lost");
    assert_eq!(sleep::timed_out(), 0, "a wake-up was lost");
    assert_all_is_given_back(a);
}

/// Starts a thread that allocates, waiting for it, uses the element and frees it.
pub fn taker<'s>(s: &'s Scope<'s, '_>, pool: &'s Pool<'_>) -> ScopedJoinHandle<'s, ()> {
    s.spawn(move || {
        let element = pool.alloc(Gfp::KERNEL);
        use_it(element);
        free(pool, element);
    })
}

/// Waits until so many threads sleep.
pub fn until_asleep(count: usize) {
    while sleep::asleep() < count {
        yield_now();
    }
}

static ALONE: Mutex<()> = Mutex::new(());

/// Keeps the other tests of the process that count sleepers away.
pub fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
