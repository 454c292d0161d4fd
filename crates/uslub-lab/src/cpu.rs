//! One CPU of the simulated machine. The engine plays it.

use corosensei::Yielder;

/// Why a coroutine stops running.
pub(crate) enum Stop {
    /// It can go on at its clock.
    Ready,
    /// Someone, or the clock, must wake it.
    Blocked,
}

/// Times of a CPU, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// All that passed.
    pub passed: u64,
    /// Work outside of the allocator.
    pub work: u64,
    /// Sleep: nothing to do.
    pub idle: u64,
}

/// A CPU. Times are in picoseconds.
pub(crate) struct Cpu {
    pub clock: u64,
    /// Of its coroutine; null before its first step.
    pub yielder: *const Yielder<(), Stop>,
    /// Number of the present wait: an older wake-up is stale.
    pub ticket: u64,
    /// The lock that was passed to this CPU and that it takes next.
    pub granted: usize,
    pub times: Times,
    /// Pauses in a row.
    pub pauses: u32,
    /// When all lines that it asked for without waiting are there.
    pub queue: u64,
    /// The first accesses since its last fast path: number, and time without lines.
    pub hits: (u32, u64),
}

impl Cpu {
    /// A CPU at the beginning of time.
    pub fn new() -> Self {
        Self {
            clock: 0,
            yielder: std::ptr::null(),
            ticket: 0,
            granted: 0,
            times: Times::default(),
            pauses: 0,
            queue: 0,
            hits: (0, 0),
        }
    }

    /// Asks for lines without waiting for each. It waits as soon as there are more on their way
    /// than come in the time of one.
    #[inline]
    pub fn ask_for(&mut self, time: u64, longest: u64, overlap: f64) {
        if time > 0 {
            self.queue = self.queue.max(self.clock) + (time as f64 / overlap) as u64;
            self.clock = self.clock.max(self.queue.saturating_sub(longest));
        }
    }
}
