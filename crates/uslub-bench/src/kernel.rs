//! The cost of SLUB inside the kernel, in nanoseconds per object. K and seed 2 compare with it.
//!
//! The figures were measured once, on the machine on which all goals were set. The kernel's real
//! code ran as a process on one CPU; each figure is the minimum of many windows.

/// The kernels of the figures: the newest, and the last one without sheaves.
pub const KERNELS: [&str; 2] = ["Linux 7.2.12", "Linux 6.1.192"];
/// The label of the newest kernel in a chart.
pub const NEWEST: &str = "Linux 7.2.12's own code";
/// One figure for each kernel.
pub type Known = [f64; KERNELS.len()];

/// A pair of allocation and free of a cache's object.
pub const PAIR: Known = [11.0, 10.0];
/// A pair of allocation and free of a kmalloc object of 64 bytes.
pub const KMALLOC: Known = [14.7, 13.3];
/// A bulk allocation and a bulk free, by the number of objects.
pub const BULKS: [(usize, Known); 7] = [
    (1, [28.0, 13.0]),
    (2, [15.0, 8.0]),
    (4, [9.0, 5.4]),
    (8, [5.4, 4.0]),
    (16, [3.9, 4.0]),
    (32, [3.3, 3.9]),
    (250, [3.2, 6.3]),
];
/// N single allocations, then N single frees.
pub const SINGLES: [(usize, Known); 2] = [(32, [13.8, 10.7]), (250, [14.6, 20.0])];

/// Bulks from fresh slabs, for one object size.
pub struct Fresh {
    /// Bytes of an object.
    pub size: usize,
    /// Time of the allocation, for objects in address order and in random order.
    pub alloc: [Known; 2],
    /// Time of the bulk free.
    pub free: Known,
}

/// The figures by object size.
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

/// The newest kernel's figure for bulks of `n`, and whether exactly `n` was measured. For any other
/// `n`, the lower figure of the two neighbours counts.
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
