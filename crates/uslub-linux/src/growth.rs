//! How quickly memory grows.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Bytes that were used up within a nanosecond each, part by part: three times what clearing them by small pages takes.
pub(crate) struct Growth {
    /// When a part was used up the last time, in nanoseconds.
    used_up_ns: AtomicU64,
    /// Bytes that were used up quickly since some were not.
    quick: AtomicUsize,
}

impl Growth {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            used_up_ns: AtomicU64::new(0),
            quick: AtomicUsize::new(0),
        }
    }

    /// Hears that `bytes` bytes, all that was there to use since the last call, are used up; returns whether that was quick.
    pub(crate) fn note(&self, now_ns: u64, bytes: usize) -> bool {
        // Relaxed: a hint, like all here; of two threads at the same time one may count for both.
        let before = self.used_up_ns.swap(now_ns, Relaxed);
        let is_quick = now_ns.saturating_sub(before) <= bytes as u64;
        let quick = self.quick_bytes().saturating_add(bytes);
        // Relaxed: as above.
        self.quick.store(if is_quick { quick } else { 0 }, Relaxed);
        is_quick
    }

    /// Bytes that were used up quickly of late, one part after another.
    pub(crate) fn quick_bytes(&self) -> usize {
        // Relaxed: as above.
        self.quick.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_up_within_a_nanosecond_a_byte_counts_until_something_was_not() {
        let growth = Growth::new();
        let mut now = 1 << 40;
        let mut used_up_after = |ns, bytes| {
            now += ns;
            (growth.note(now, bytes), growth.quick_bytes())
        };
        assert_eq!(used_up_after(0, 0), (false, 0), "nothing was there before");
        assert_eq!(used_up_after(100, 100), (true, 100));
        assert_eq!(used_up_after(1000, 1000), (true, 1100));
        assert_eq!(used_up_after(51, 50), (false, 0));
        assert_eq!(used_up_after(999, 1000), (true, 1000));
    }
}
