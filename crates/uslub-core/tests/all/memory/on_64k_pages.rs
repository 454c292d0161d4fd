//! Tests of other files, where the system's pages have 64 KiB.

#![allow(clippy::duplicate_mod, reason = "the same tests on other pages")]

#[path = "arena.rs"]
mod arena;
#[path = "growth.rs"]
mod growth;
#[path = "huge_pages.rs"]
mod huge_pages;
#[path = "pages.rs"]
mod pages;
#[path = "resident.rs"]
mod resident;

/// Bytes of a page of the system.
const SYSTEM_PAGE: usize = 64 << 10;
