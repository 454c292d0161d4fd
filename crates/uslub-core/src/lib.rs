//! SLUB for user space: the core, without `std` and without an operating system.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod tunables;
