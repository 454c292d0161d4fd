//! Batches of objects near a CPU.

mod bulk;
mod capacity;
mod evict;
mod offers;
mod replace;
mod spill;
