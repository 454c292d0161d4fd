//! Blocks of huge pages: which are, and what becomes of them when a part is given back.

use super::SYSTEM_PAGE;
use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, Slub};
use uslub_core::Gfp;
use uslub_core::memory::PageIndex;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::{Backing, PAGE_SIZE, Platform};

const DECAY: u64 = 1000;

fn setup(huge_pages_mb: u32) -> Box<Slub> {
    let huge = format!("huge_pages_mb={huge_pages_mb}");
    Setup::with(&[&format!("decay_ms={DECAY}"), &huge])
        .on_pages_of(SYSTEM_PAGE)
        .build()
}

fn take(a: &Slub, count: usize) -> PageIndex {
    let run = a.zone.alloc(&a.platform, count, 1, Gfp::KERNEL);
    let page = run.expect("there is memory").page;
    fill(address(a, page), count * PAGE_SIZE, 0x5a);
    page
}

fn address(a: &Slub, page: PageIndex) -> *mut u8 {
    a.zone.arena.address(page).as_ptr()
}

fn decay(a: &Slub) -> Vec<(usize, usize)> {
    a.platform.advance(2 * DECAY);
    a.platform.take_purged();
    a.zone.decay(&a.platform, a.platform.now_ms(), DECAY);
    a.platform.take_purged()
}

#[test]
fn blocks_beyond_the_first_are_asked_for_as_huge_pages() {
    let a = setup(4);
    let blocks: Vec<_> = (0..4).map(|_| take(&a, BLOCK_PAGES)).collect();
    let huge = |n: usize| {
        let ahead = a.zone.arena.reserved_bytes() - (n + 1) * BLOCK_BYTES;
        let start = address(&a, blocks[n]) as usize;
        (start, BLOCK_BYTES, Backing::HugePages { ahead })
    };
    assert_eq!(a.platform.take_backed(), [huge(2), huge(3)]);
    let never = setup(0);
    for _ in 0..4 {
        take(&never, BLOCK_PAGES);
    }
    assert_eq!(never.platform.take_backed(), []);
}

#[test]
fn a_huge_page_of_which_a_part_is_given_back_becomes_small_ones_and_all_its_free_pages_go() {
    let a = setup(2);
    take(&a, BLOCK_PAGES);
    // Multiples of the longest page of a system.
    let page = take(&a, 208);
    let start = address(&a, page) as usize;
    a.platform.take_backed();
    a.zone.free(&a.platform, page, 48, DECAY);
    // Those that were never handed out hold memory too.
    let rest = BLOCK_PAGES - 208;
    let parts = [
        (start, 48 * PAGE_SIZE),
        (start + 208 * PAGE_SIZE, rest * PAGE_SIZE),
    ];
    assert_eq!(decay(&a), parts);
    assert_eq!(
        a.platform.take_backed(),
        [(start, BLOCK_BYTES, Backing::BasePages)]
    );
    assert!(is_filled(
        (start + 48 * PAGE_SIZE) as *mut u8,
        160 * PAGE_SIZE,
        0x5a
    ));
    let again = a.zone.alloc(&a.platform, rest, 1, Gfp::KERNEL).unwrap();
    assert!(again.zero);
    // Once: from now on the block is one of small pages.
    a.zone.free(&a.platform, again.page, rest, DECAY);
    assert_eq!(decay(&a), parts[1..]);
    assert_eq!(a.platform.take_backed(), []);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn an_empty_huge_page_goes_whole_and_stays_one() {
    let a = setup(2);
    take(&a, BLOCK_PAGES);
    let page = take(&a, BLOCK_PAGES);
    a.platform.take_backed();
    a.zone.free(&a.platform, page, BLOCK_PAGES, DECAY);
    let all = (address(&a, page) as usize, BLOCK_BYTES);
    assert!(decay(&a).contains(&all));
    assert_eq!(a.platform.take_backed(), []);
    assert_eq!(a.validate(), Ok(()));
}
