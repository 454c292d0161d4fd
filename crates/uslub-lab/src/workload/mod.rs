//! Loads: what each CPU does.
//!
//! | load | a step of a CPU |
//! |---|---|
//! | `pairs` | allocates an object, writes to it and frees it |
//! | `flow` | producers allocate and pass objects on; consumers free them |
//! | `ublk` | the same through one mempool, with the work of a request around it |
//! | `maple` | a tree's nodes under `mmap`: refills with leftovers, frees after a grace period |
//! | `hackbench` | sends messages to all CPUs of its group and frees those that it gets |
//! | `bulk` | bulk allocations, and bulk frees of objects from many slabs |
//! | `trace` | what a user's file says |

mod bulk;
mod flow;
mod maple;
mod pairs;
pub mod trace;

use uslub_core_timed::Gfp;

use crate::error::Failure;
use crate::world::World;

/// The program of one CPU.
pub trait Program {
    /// One step; returns the operations done. `until`: when the load ends, in picoseconds.
    fn step(&mut self, until: u64) -> u64;

    /// Whether there is nothing left to do.
    fn is_done(&self) -> bool {
        false
    }

    /// Frees everything; runs after the load.
    fn end(&mut self);
}

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Pairs of allocation and free.
    Pairs,
    /// Producers and consumers.
    Flow,
    /// Requests of a block device.
    Ublk,
    /// Nodes of a maple tree.
    Maple,
    /// Messages among groups.
    Hackbench,
    /// Bulks.
    Bulk,
    /// A file.
    Trace,
}

impl Kind {
    /// All kinds, with the name on the command line.
    pub const ALL: [(&str, Kind); 7] = [
        ("pairs", Kind::Pairs),
        ("flow", Kind::Flow),
        ("ublk", Kind::Ublk),
        ("maple", Kind::Maple),
        ("hackbench", Kind::Hackbench),
        ("bulk", Kind::Bulk),
        ("trace", Kind::Trace),
    ];
}

/// Whom a producer sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// The next CPU: mostly with the same last-level cache.
    Near,
    /// The CPU half a machine away: with several nodes, of another node.
    Far,
    /// Each CPU sends to the next and gets from the one before.
    Ring,
}

impl Link {
    /// All links, with the name on the command line.
    pub const ALL: [(&str, Link); 3] = [
        ("near", Link::Near),
        ("far", Link::Far),
        ("ring", Link::Ring),
    ];
}

/// A load and its numbers.
#[derive(Clone, Debug)]
pub struct Load {
    /// The kind.
    pub kind: Kind,
    /// Bytes of an object.
    pub size: usize,
    /// Objects of a bulk.
    pub bulk: usize,
    /// Who sends to whom.
    pub link: Link,
    /// Whether allocations may not block (`GFP_NOWAIT`), or may (`GFP_KERNEL`).
    pub nowait: bool,
    /// Nanoseconds of a CPU's own work around each operation.
    pub work: u64,
    /// Microseconds of a grace period.
    pub grace_us: u64,
    /// The trace, if the load is one.
    pub trace: Option<trace::Trace>,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Load {
    /// The usual numbers of a kind.
    pub fn usual(kind: Kind) -> Self {
        let (size, work) = match kind {
            Kind::Pairs | Kind::Bulk | Kind::Trace => (256, 0),
            Kind::Flow => (256, 100),
            Kind::Ublk => (256, 400),
            Kind::Maple => (256, 3000),
            Kind::Hackbench => (512, 500),
        };
        Self {
            kind,
            size,
            bulk: 64,
            link: if kind == Kind::Ublk {
                Link::Near
            } else {
                Link::Far
            },
            nowait: kind == Kind::Ublk,
            work,
            grace_us: 4000,
            trace: None,
            seed: 1,
        }
    }

    fn gfp(&self) -> Gfp {
        if self.nowait {
            Gfp::NOWAIT
        } else {
            Gfp::KERNEL
        }
    }

    /// Settings that the load's own cache has, unless the user sets them.
    pub fn settings(&self) -> &'static [&'static str] {
        match self.kind {
            // The kernel's sheaves and slabs of maple nodes.
            Kind::Maple => &[
                "sheaf_capacity=32",
                "max_full_sheaves=10",
                "slab_min_objects=32",
                "slab_min_order=1",
            ],
            _ => &[],
        }
    }

    /// The programs of all CPUs.
    pub fn programs(&self, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
        match self.kind {
            Kind::Pairs => pairs::programs(self, world),
            Kind::Flow | Kind::Ublk | Kind::Hackbench => flow::programs(self, world),
            Kind::Maple => maple::programs(self, world),
            Kind::Bulk => bulk::programs(self, world),
            Kind::Trace => trace::programs(self, world),
        }
    }
}
