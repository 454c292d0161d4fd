//! The competitors of seed 1: what the thread proposed and tried, and what cures the drawbacks.

use crate::seeds::Way;

/// Sheaf capacity and slab size of the kernel's maple nodes.
const KERNEL: [&str; 4] = [
    "sheaf_capacity=32",
    "max_full_sheaves=10",
    "slab_min_objects=32",
    "slab_min_order=1",
];

/// A competitor.
pub struct Idea {
    pub name: &'static str,
    settings: &'static [&'static str],
    /// Number of the competitor that it is compared with.
    pub against: usize,
    /// What the thread reported about it.
    pub reported: &'static str,
}

const fn idea(
    name: &'static str,
    settings: &'static [&'static str],
    against: usize,
    reported: &'static str,
) -> Idea {
    Idea {
        name,
        settings,
        against,
        reported,
    }
}

/// What the thread said of a threshold below a full sheaf, and of more objects a sheaf.
pub const THRESHOLD: &str = "partly filled: in most cases slower";
const LARGER: &str = "a maximum above the capacity: asked for, not measured";

/// Number of the competitors that play on the real CPUs too: the first ones.
pub const MAIN: usize = 3;
/// Number of the proposed spill without a cure.
pub const SPILL: usize = 1;
/// Number of the spill with the reserve.
pub const CURED: usize = 2;
/// Number of the threshold below a full sheaf.
pub const PARTLY_FILLED: usize = 6;
/// Numbers of those that two threads play.
pub const ON_TWO: [usize; 4] = [0, SPILL, CURED, 4];

/// All competitors. The first one is the baseline.
pub const IDEAS: [Idea; 12] = [
    idea("no spill", &["sheaf_spill=0"], 0, ""),
    idea("spill", &["sheaf_spill=1"], 0, ""),
    idea(
        "spill and reserve",
        &["sheaf_spill=1", "empty_reserve=1"],
        0,
        "a dynamic threshold: asked for, not measured",
    ),
    idea("reserve alone", &["empty_reserve=1"], 0, ""),
    idea(
        "spill into the barn",
        &["sheaf_spill=2"],
        0,
        "churn × 1.x, no meaningful gain",
    ),
    idea(
        "spill into the barn and reserve",
        &["sheaf_spill=2", "empty_reserve=1"],
        0,
        "",
    ),
    idea("partly filled", &["refill_min_percent=50"], 0, THRESHOLD),
    idea("32 to 128 a sheaf", &["sheaf_capacity_max=128"], 0, LARGER),
    idea(
        "32 to 128 a sheaf and spill",
        &["sheaf_capacity_max=128", "sheaf_spill=1"],
        0,
        "",
    ),
    idea(
        "32 to 128 a sheaf, spill and reserve",
        &["sheaf_capacity_max=128", "sheaf_spill=1", "empty_reserve=1"],
        0,
        "",
    ),
    idea(
        "slabs of 128",
        &["slab_min_objects=128"],
        0,
        "no sense in slabs larger than a sheaf",
    ),
    idea(
        "slabs of 128 and spill",
        &["slab_min_objects=128", "sheaf_spill=1"],
        10,
        "",
    ),
];

/// The settings of a competitor.
pub fn settings(number: usize) -> Vec<&'static str> {
    [&KERNEL[..], IDEAS[number].settings].concat()
}

/// What a competitor runs.
pub fn way(number: usize) -> Way {
    Way::new(IDEAS[number].name, "maple tree", &settings(number))
}
