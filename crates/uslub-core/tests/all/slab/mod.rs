//! Objects in pages.

mod debug;
mod debug_letters;
mod detached;
mod empty_reserve;
mod fresh;
mod nodes;
mod order;
mod partial;
mod whole_slab;
