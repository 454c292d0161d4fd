//! Pages from the system, and back.
//!
//! Some files run three times: here, and in `on_16k_pages` and `on_64k_pages`. They find the size
//! of the system's pages in `super`.

mod arena;
mod clock;
mod growth;
mod huge_pages;
mod on_16k_pages;
mod on_64k_pages;
mod pages;
mod pcp;
mod range;
mod resident;
mod system_pages;

use crate::support::Slub;
use crate::support::pattern::fill;
use uslub_core::Gfp;
use uslub_core::memory::PageIndex;
use uslub_core::platform::PAGE_SIZE;

/// Bytes of a page of the system.
const SYSTEM_PAGE: usize = PAGE_SIZE;
/// Milliseconds after which free pages go back.
const DECAY: u64 = 1000;

fn take(a: &Slub, count: usize, align: usize) -> PageIndex {
    let run = a.zone.alloc(&a.platform, count, align, Gfp::KERNEL);
    run.expect("there is memory").page
}

fn give(a: &Slub, page: PageIndex, count: usize) {
    a.zone.free(&a.platform, page, count, DECAY);
}

fn address(a: &Slub, page: PageIndex) -> *mut u8 {
    a.zone.arena.address(page).as_ptr()
}

/// Writes to all of a run, so that it is no longer zero.
fn dirty(a: &Slub, page: PageIndex, count: usize) {
    fill(address(a, page), count * PAGE_SIZE, 0x5a);
}
