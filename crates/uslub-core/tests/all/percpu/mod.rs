//! Words of a CPU and a cache.

mod cold_cpu;
mod slots;
