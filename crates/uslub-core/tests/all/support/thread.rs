//! What a thread of a test is: on which CPU it runs, whether it may wait, and its dice.

use std::cell::Cell;

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static HOPS: Cell<u64> = const { Cell::new(0) };
    static DICE: Cell<u64> = const { Cell::new(1) };
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// A number of this thread's own, not 0.
pub fn number() -> usize {
    CPU.with(|cpu| core::ptr::from_ref(cpu) as usize)
}

/// Puts this thread on a CPU.
pub fn on_cpu(cpu: usize) {
    CPU.set(cpu);
    HOPS.set(0);
}

/// Makes this thread change its CPU at random, at every look.
pub fn hop(seed: u64) {
    HOPS.set(splitmix(seed) | 1);
    DICE.set(splitmix(seed ^ 77));
}

/// The CPU of this thread now.
pub fn cpu() -> usize {
    if HOPS.get() != 0 {
        HOPS.set(splitmix(HOPS.get()) | 1);
        CPU.set(HOPS.get() as usize >> 8);
    }
    CPU.get()
}

/// Lets others run now and then, where this thread hops: as if preempted between a glance and what
/// follows it.
pub fn yield_sometimes() {
    if HOPS.get() != 0 && HOPS.get().is_multiple_of(61) {
        std::thread::yield_now();
    }
}

/// Says yes once in so many times, at random.
pub fn one_in(n: u64) -> bool {
    DICE.set(splitmix(DICE.get()));
    DICE.get().is_multiple_of(n)
}

/// Whether this thread may wait for locks.
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Runs `work` and fails the test if it waits for a lock.
pub fn never_waiting<T>(work: impl FnOnce() -> T) -> T {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            MAY_WAIT.set(true);
        }
    }
    let _again = Again;
    MAY_WAIT.set(false);
    work()
}

/// A round of a random number generator.
pub fn splitmix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random numbers for one thread of a test.
pub struct Dice(u64);

impl Dice {
    /// Dice that always fall the same way for a seed.
    pub fn new(seed: u64) -> Self {
        Self(splitmix(seed))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (splitmix(self.0) % n as u64) as usize
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.below(i + 1));
        }
    }
}
