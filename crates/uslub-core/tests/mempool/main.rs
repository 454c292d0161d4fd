//! Memory pools: what is reserved keeps operations going, and nobody sleeps past what he waits for.
//!
//! This is a program of its own: its tests count all threads of the process that sleep, and all
//! waits that ran out (`support::sleep`). In `all` the other tests would be counted too.

#[path = "../all/support/mod.rs"]
mod support;

mod budget;
mod reserve;
mod resize;
