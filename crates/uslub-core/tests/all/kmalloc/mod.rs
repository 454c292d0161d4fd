//! Objects of any size.

mod alloc;
mod buckets;
mod guard;
mod hardened;
mod resize;
mod switch;
mod switch_life;
