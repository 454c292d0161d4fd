//! What SLUB takes inside the kernel: nanoseconds an object.
//!
//! Measured once, on the machine where all goals were set: the real code, run as a process, the
//! least of many windows on one CPU.

/// Whose figures they are: of the newest, and of the last before it got sheaves.
pub const KERNELS: [&str; 2] = ["Linux 7.2.12", "Linux 6.1.192"];
/// Those of the newest in a chart.
pub const NEWEST: &str = "Linux 7.2.12's own code";
/// A figure of each.
pub type Known = [f64; KERNELS.len()];

/// An object of a cache, allocated and freed.
pub const PAIR: Known = [11.0, 10.0];
/// An object of kmalloc of 64 bytes, allocated and freed.
pub const KMALLOC: Known = [14.7, 13.3];
/// Objects a bulk, allocated and freed.
pub const BULKS: [(usize, Known); 7] = [
    (1, [28.0, 13.0]),
    (2, [15.0, 8.0]),
    (4, [9.0, 5.4]),
    (8, [5.4, 4.0]),
    (16, [3.9, 4.0]),
    (32, [3.3, 3.9]),
    (250, [3.2, 6.3]),
];
/// Objects allocated one by one, then freed likewise.
pub const SINGLES: [(usize, Known); 2] = [(32, [13.8, 10.7]), (250, [14.6, 20.0])];

/// Objects that a bulk takes out of a fresh slab.
pub struct Fresh {
    /// Bytes of one.
    pub size: usize,
    /// Its allocation, where a slab's objects lie in order and in random order.
    pub alloc: [Known; 2],
    /// Its free in bulk.
    pub free: Known,
}

/// By size.
pub const FRESH: [Fresh; 6] = [
    fresh(16, [[1.8, 3.8], [2.3, 4.4]], [3.0, 4.3]),
    fresh(32, [[2.0, 4.0], [2.5, 6.0]], [3.8, 5.9]),
    fresh(64, [[2.4, 4.4], [3.0, 10.7]], [5.1, 8.8]),
    fresh(128, [[3.2, 9.1], [4.2, 14.0]], [12.9, 13.3]),
    fresh(256, [[3.7, 12.1], [4.7, 14.5]], [13.9, 13.6]),
    fresh(512, [[3.9, 12.4], [4.7, 16.6]], [14.9, 14.6]),
];

const fn fresh(size: usize, alloc: [Known; 2], free: Known) -> Fresh {
    Fresh { size, alloc, free }
}

/// The newest kernel's figure for bulks of `n`, and whether it was measured at just this number;
/// else it is the lower of its neighbours'.
pub fn bulk(n: usize) -> (f64, bool) {
    let exact = BULKS.iter().find(|(known, _)| *known == n);
    if let Some((_, [newest, _])) = exact {
        return (*newest, true);
    }
    let next = BULKS.partition_point(|(known, _)| *known < n);
    let neighbours = BULKS[next.saturating_sub(1)..].iter().take(2);
    let lower = neighbours
        .map(|(_, [newest, _])| *newest)
        .fold(f64::MAX, f64::min);
    (lower, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_bulks_the_lower_figure_counts() {
        assert_eq!(
            [1, 2, 250].map(bulk),
            [(28.0, true), (15.0, true), (3.2, true)]
        );
        assert_eq!(
            [3, 30, 34, 158].map(bulk),
            [(9.0, false), (3.3, false), (3.2, false), (3.2, false)]
        );
        assert_eq!(bulk(400), (3.2, false));
    }
}
