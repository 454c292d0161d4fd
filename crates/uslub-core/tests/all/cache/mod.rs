//! Caches: how they are made, and objects of them.

mod bulk;
mod fork;
mod kmem_cache;
mod object;
mod peak;
mod reclaim;
mod shrink;
mod slab_use;
