//! Time on a simulated machine: real, or moved by the user. `Sim` and `Batches` read it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A clock. Its copies share the time.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Real(Instant),
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// A clock of real time.
    pub fn real() -> Self {
        Self(Kind::Real(Instant::now()))
    }

    /// A clock that only [`advance`](Self::advance) moves.
    pub fn manual() -> Self {
        Self(Kind::Virtual(Arc::default()))
    }

    /// Nanoseconds since the clock's creation.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            Kind::Real(start) => start.elapsed().as_nanos() as u64,
            // Relaxed: the number only grows and publishes no other data.
            Kind::Virtual(now) => now.load(Relaxed),
        }
    }

    /// Moves a manual clock forward. Has no effect on real time.
    #[inline]
    pub fn advance(&self, ns: u64) {
        if let Kind::Virtual(now) = &self.0 {
            // Relaxed: the number only grows and publishes no other data.
            now.fetch_add(ns, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_when_it_is_moved_and_its_copies_with_it() {
        let clock = Clock::manual();
        let copy = clock.clone();
        assert_eq!(clock.now_ns(), 0);
        copy.advance(7);
        assert_eq!((clock.now_ns(), copy.now_ns()), (7, 7));
        let real = Clock::real();
        let before = real.now_ns();
        real.advance(u64::MAX / 2);
        assert!(real.now_ns() - before < 1 << 40);
    }
}
