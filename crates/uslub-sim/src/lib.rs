//! A simulated machine below the allocator: many CPUs and memory nodes on a few real CPUs. The
//! benchmarks and the tests of this crate use it.
//!
//! The allocator is the real one; only the machine is simulated. A thread runs on the virtual CPU
//! that it has set ([`cpu::on`]), and may change the CPU before each call. So one thread can play
//! all CPUs of a machine in turn, in the same way each time. Two threads can play half of the CPUs
//! each, with real contention.
//!
//! | feature | implementation |
//! |---|---|
//! | CPUs, nodes, nodes with memory | [`Machine`] |
//! | the CPU of a thread | [`cpu::on`] |
//! | per-CPU slots | the lock bit of each word |
//! | time | [`Clock`]: real time, or a clock that only its user moves |
//! | grace periods | [`Batches`]: callbacks wait for a whole period and then come in a burst |
//! | memory | mappings of the system, unmapped with the machine |
//!
//! The machine records nothing and injects no failures: uslub-core's own tests have a platform for
//! that. This platform is for measurements.
//!
//! ```
//! use uslub_core::{Allocator, Gfp, args::CacheArgs};
//! use uslub_sim::{Clock, Machine, Sim, cpu};
//!
//! let machine = Machine::new(64, 4).with_memory_on(&[0, 2]);
//! let slub = uslub_sim::allocator(Sim::new(machine, Clock::real()), Default::default());
//! let cache = slub.create(&CacheArgs::new("thing", 64)).unwrap();
//! cpu::on(3);
//! let object = slub.alloc(cache, Gfp::KERNEL);
//! cpu::on(42);
//! // SAFETY: the object is of this cache and is not used any longer.
//! unsafe { slub.free(cache, object) };
//! ```

mod clock;
pub mod cpu;
mod grace;
mod machine;
mod memory;
mod sim;

use uslub_core::Allocator;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::tunables::Tunables;

pub use clock::Clock;
pub use grace::Batches;
pub use machine::Machine;
pub use sim::Sim;

/// Address space that an allocator reserves, in bytes.
const RESERVE: usize = 8 << 30;

/// Creates an initialised allocator on a simulated machine.
///
/// # Panics
///
/// If the system refuses the address space.
pub fn allocator(sim: Sim, tunables: Tunables) -> Box<Allocator<Sim>> {
    let allocator = Box::new(Allocator::new(sim));
    // SAFETY: no other thread has the allocator yet.
    let done = unsafe { allocator.init(RESERVE, tunables) };
    assert!(done, "the system refuses address space");
    allocator.keep_indices(NR_CLASSES + 1);
    allocator
}
