//! Measures uslub: the five mailing-list threads that uslub was built from, each old way against
//! the new way. `uslub bench` runs it.
//!
//! One binary has both ways; the `Tuning` of a cache selects one. Competitors take turns (A B A B
//! …). The median of the rounds counts; the report shows the spread next to it.
//!
//! | file | concept |
//! |---|---|
//! | `seeds` | one file for each seed: workload, competitors, goals |
//! | `bench` | the size of a run, its rounds and its progress bar |
//! | `measure`, `quiet` | rounds and medians; times on a shared machine |
//! | `strategy` | caches from `key=value` settings; counters by name |
//! | `linux`, `machine`, `pace` | the real allocator, CPUs for pinning, facts about both |
//! | `floor` | the minimum cost of a call |
//! | `kernel` | the cost of SLUB inside the kernel |
//! | `bulks`, `fresh` | bulks from sheaves, and from fresh slabs |
//! | `lab` | calibration of the laboratory, and its check against real runs |
//! | `ring`, `threads`, `dice` | building blocks of workloads |
//! | `peers` | comparison with other allocators |
//! | `goal`, `output` | the results, and their presentation on a terminal and in a browser |

pub mod bench;
mod bulks;
mod dice;
mod error;
mod floor;
mod fresh;
mod goal;
mod kernel;
pub mod lab;
mod linux;
mod machine;
mod measure;
pub mod output;
mod pace;
pub mod peers;
mod quiet;
mod ring;
pub mod seeds;
mod strategy;
mod threads;

pub use bench::{Bench, Size};
pub use error::Failure;
pub use measure::Sample;
pub use output::Report;
