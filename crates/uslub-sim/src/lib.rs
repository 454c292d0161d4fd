//! A simulated machine below the allocator: many CPUs and memory nodes on the few that are there.
//!
//! The allocator is the real one; the machine is not. A thread is on the virtual CPU that it says
//! ([`cpu::on`]), and may say another before each call. So one thread can play all CPUs of a
//! machine in turn, the same way each time, and two threads can play half of them each and meet for
//! real.
//!
//! | what | how |
//! |---|---|
//! | CPUs, nodes, which nodes own memory | [`Machine`] |
//! | the CPU of a thread | [`cpu::on`] |
//! | per-CPU slots | by the lock bit of each word |
//! | time | [`Clock`]: the real one, or one that only its user moves |
//! | grace periods | [`Batches`]: callbacks wait for a whole period and then come in a burst |
//! | memory | mappings of the system, all given back with the machine |
//!
//! Nothing is watched and nothing fails on demand: that is what the core's own tests have a
//! platform for. This one is for figures.
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
//! // SAFETY: this cache's, and not used any more.
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

/// An allocator on a simulated machine, ready.
///
/// # Panics
///
/// When the system has no address space for it.
pub fn allocator(sim: Sim, tunables: Tunables) -> Box<Allocator<Sim>> {
    let allocator = Box::new(Allocator::new(sim));
    // SAFETY: nobody else has it yet.
    let done = unsafe { allocator.init(RESERVE, tunables) };
    assert!(done, "the system refuses address space");
    allocator.keep_indices(NR_CLASSES + 1);
    allocator
}
