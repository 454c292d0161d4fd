//! A laboratory for uslub: the real allocator on up to 512 CPUs and 16 memory nodes, in virtual
//! time. `uslub sim` runs it.
//!
//! The allocator is built from the sources of `uslub-core`, with atomics and locks that announce
//! their accesses (the package `uslub-core-timed`). Each CPU is a coroutine with its own clock. The
//! CPU with the earliest clock runs; each access costs what a cost model says. So a run with
//! the same seed gives the same figures on every machine.
//!
//! | file | concept |
//! |---|---|
//! | `topology` | CPUs, last-level caches, nodes and their memory |
//! | `costs` | the cost model |
//! | `lines` | cache lines: who holds each, and what it costs to get it |
//! | `cpu` | a CPU: its clock, and the lines that it asked for |
//! | `engine` | virtual time: coroutines, lock queues, sleep |
//! | `range` | the memory of a machine |
//! | `platform`, `grace` | the machine as the core sees it; grace periods |
//! | `world` | a machine with its allocator |
//! | `queue`, `dice` | building blocks of loads |
//! | `workload` | the loads |
//! | `policy` | a policy of a user's own |
//! | `run` | one experiment and its figures |
//! | `sweep` | many experiments: each size of machine with each setting |
//! | `output`, `page` | a report as a table, and as an HTML page with curves |
//! | `error` | what stops an experiment |
//!
//! ```
//! use uslub_lab::{Costs, Experiment, Kind, Load, Topology};
//!
//! let experiment = Experiment {
//!     machine: Topology::new(8, 2, 4, &[]).unwrap(),
//!     costs: Costs::default(),
//!     load: Load::usual(Kind::Maple),
//!     settings: vec!["sheaf_spill=1".to_owned()],
//!     warm_us: 100,
//!     run_us: 200,
//! };
//! let figures = experiment.run(None).unwrap();
//! assert!(figures.ops > 0);
//! assert_eq!(figures, experiment.run(None).unwrap());
//! ```

mod costs;
mod cpu;
mod dice;
mod engine;
mod error;
mod grace;
mod lines;
mod output;
mod page;
mod platform;
mod policy;
mod queue;
mod range;
mod run;
mod sweep;
mod topology;
mod workload;
mod world;

pub use costs::Costs;
pub use error::Failure;
pub use output::table;
pub use page::html;
pub use policy::{Choice, Policy};
pub use run::{Experiment, Figures, LockShare};
pub use sweep::{Point, Report, Sweep, values_of};
pub use topology::{CPUS_MAX, NODES_MAX, Topology};
pub use workload::trace::Trace;
pub use workload::{Kind, Link, Load};
