//! Batches of objects near a CPU.

mod bulk;
mod capacity;
mod evict;
mod groups;
mod offers;
mod replace;
mod spill;
