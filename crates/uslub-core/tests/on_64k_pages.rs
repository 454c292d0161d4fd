//! Tests of other files where the system's pages have 64 KiB; the file's name says so to the
//! support.

#![allow(clippy::duplicate_mod, reason = "each file has its support")]

#[path = "growth.rs"]
mod growth;
#[path = "huge_pages.rs"]
mod huge_pages;
#[path = "pages.rs"]
mod pages;
#[path = "resident.rs"]
mod resident;
