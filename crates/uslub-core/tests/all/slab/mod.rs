//! Objects in pages.

mod detached;
mod empty_reserve;
mod fresh;
mod nodes;
mod order;
mod partial;
mod whole_slab;
