//! Words of a CPU and a cache.

mod slots;
