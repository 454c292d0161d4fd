//! Measures uslub: the five mailing-list threads that it was built from, each old way against the
//! new one.
//!
//! Both ways are in the one binary, chosen a cache by its `Tuning`. Competitors take turns (A B A B
//! …), the median of the rounds counts, and its spread stands beside it.
//!
//! | file | concept |
//! |---|---|
//! | `seeds` | a file a seed: workload, competitors, goals |
//! | `bench` | how much is measured, and who watches |
//! | `measure`, `quiet` | rounds and medians; what counts where the machine is shared |
//! | `strategy` | caches from `key=value` settings; counters by name |
//! | `linux`, `machine`, `pace` | the real allocator, CPUs to pin to, what is said of them |
//! | `floor` | the least that a call can take |
//! | `kernel` | what SLUB takes inside the kernel |
//! | `bulks`, `fresh` | bulks out of sheaves, and out of fresh slabs |
//! | `ring`, `threads`, `dice` | what workloads are made of |
//! | `peers` | other allocators, measured beside ours |
//! | `row`, `goal`, `report` | what comes out |
//! | `table`, `page`, `chart` | how it looks: on a terminal, in a browser |

pub mod bench;
mod bulks;
mod chart;
mod dice;
mod error;
mod floor;
mod fresh;
mod goal;
mod kernel;
mod linux;
mod machine;
mod measure;
mod pace;
pub mod page;
pub mod peers;
mod quiet;
pub mod report;
mod ring;
pub mod row;
pub mod seeds;
mod strategy;
pub mod table;
mod threads;

pub use bench::{Bench, Size};
pub use error::Failure;
pub use measure::Sample;
pub use report::Report;
