//! Blocks of huge pages: which are, and what becomes of them when a part is given back.

mod support;

use support::pattern::{fill, is_filled};
use support::{Setup, Slub};
use uslub_core::Gfp;
use uslub_core::page::PageIndex;
use uslub_core::page::arena::BLOCK_BYTES;
use uslub_core::page::block::BLOCK_PAGES;
use uslub_core::platform::{Backing, PAGE_SIZE, Platform};

const DECAY: u64 = 1000;

fn setup(huge_pages_mb: u32) -> Box<Slub> {
    let huge = format!("huge_pages_mb={huge_pages_mb}");
    Setup::with(&[&format!("decay_ms={DECAY}"), &huge]).build()
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
        (start, BLOCK_BYTES, Backing::Huge { ahead })
    };
    assert_eq!(a.platform.take_backed(), [huge(2), huge(3)]);
    let never = setup(0);
    for _ in 0..4 {
        take(&never, BLOCK_PAGES);
    }
    assert_eq!(never.platform.take_backed(), []);
}

/// Takes the first half MiB; tells in what parts it came.
fn take_half_a_mib(a: &Slub) -> Vec<usize> {
    take(a, 64);
    take(a, 64);
    let parts = a.platform.take_used_up().into_iter();
    parts.map(|bytes| bytes / PAGE_SIZE).collect()
}

#[test]
fn where_memory_grows_quickly_they_follow_half_a_mib() {
    let a = setup(2);
    a.platform.hurry();
    assert_eq!(take_half_a_mib(&a), [0, 64]);
    let page = take(&a, 1);
    assert_eq!(page, PageIndex(BLOCK_PAGES as u32));
    let backed = a.platform.take_backed();
    assert!(matches!(
        backed[..],
        [(_, BLOCK_BYTES, Backing::Huge { .. })]
    ));
    take(&a, BLOCK_PAGES);
    // The rest of the first block is left out, and no page comes twice.
    assert_eq!(
        a.platform.take_used_up(),
        [64, 512].map(|pages| pages * PAGE_SIZE)
    );
    a.zone.free(&a.platform, PageIndex(0), 128, DECAY);
    assert_eq!(
        decay(&a),
        [(address(&a, PageIndex(0)) as usize, 128 * PAGE_SIZE)]
    );
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn where_it_does_not_the_first_block_is_used_whole() {
    for (huge_pages_mb, hurries) in [(2, false), (3, true), (0, true)] {
        let a = setup(huge_pages_mb);
        if hurries {
            a.platform.hurry();
        }
        assert_eq!(take_half_a_mib(&a), [0, 64]);
        let rest = take(&a, BLOCK_PAGES - 128);
        assert_eq!(rest, PageIndex(128));
        assert_eq!(take(&a, 1), PageIndex(BLOCK_PAGES as u32));
        assert_eq!(
            a.platform.take_used_up(),
            [64, 384].map(|pages| pages * PAGE_SIZE)
        );
        assert_eq!(a.validate(), Ok(()));
    }
}

#[test]
fn descriptors_of_256_mib_are_asked_for_as_a_huge_page_where_theirs_begin() {
    let setup = |huge_pages_mb: u32, reserve: usize| {
        let huge = format!("huge_pages_mb={huge_pages_mb}");
        let setup = Setup::with(&[&huge]);
        Setup { reserve, ..setup }.build()
    };
    let tables = |a: &Slub| {
        for _ in 0..160 {
            a.zone
                .alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL)
                .unwrap();
        }
        let backed = a.platform.take_backed().into_iter();
        let tables: Vec<_> = backed
            .filter(|(_, _, backing)| *backing == Backing::Table)
            .collect();
        tables
    };
    let a = setup(2, 640 << 20);
    let start = |a: &Slub, block: usize| {
        std::ptr::from_ref(a.zone.arena.slab(PageIndex((block * BLOCK_PAGES) as u32))) as usize
    };
    let found = tables(&a);
    // From 32 MiB on, 256 MiB each.
    let expected = [16, 16 + 128].map(|block| (start(&a, block), BLOCK_BYTES, Backing::Table));
    assert_eq!(found, expected);
    assert!(
        expected
            .iter()
            .all(|(start, ..)| start.is_multiple_of(BLOCK_BYTES))
    );
    assert_eq!(a.validate(), Ok(()));
    // None that the reservation would not fill, and none beside small pages.
    assert_eq!(tables(&setup(2, 480 << 20)).len(), 1);
    assert_eq!(tables(&setup(0, 640 << 20)), []);
}

#[test]
fn descriptors_of_blocks_to_come_go_when_those_of_a_block_do() {
    let huge = ["huge_pages_mb=2", &format!("decay_ms={DECAY}")];
    let setup = Setup::with(&huge);
    let reserve = 512 << 20;
    let a = Setup { reserve, ..setup }.build();
    let blocks: Vec<_> = (0..21).map(|_| take(&a, BLOCK_PAGES)).collect();
    let descriptors = |block: usize| std::ptr::from_ref(a.zone.arena.slab(blocks[block])) as usize;
    let (table, unit) = (descriptors(16), descriptors(17) - descriptors(16));
    a.platform.take_backed();
    // Not one of those that have theirs elsewhere.
    a.zone.free(&a.platform, blocks[15], BLOCK_PAGES, DECAY);
    // They stay where a page of the system holds those of others too.
    let alone = unit.is_multiple_of(a.platform.system_page());
    assert_eq!(decay(&a).contains(&(descriptors(15), unit)), alone);
    assert_eq!(a.platform.take_backed(), []);
    a.zone.free(&a.platform, blocks[19], BLOCK_PAGES, DECAY);
    let purged = decay(&a);
    assert_eq!(purged.contains(&(descriptors(19), unit)), alone);
    let used = a.platform.whole_pages(5 * unit);
    assert!(purged.contains(&(table + used, BLOCK_BYTES - used)));
    assert_eq!(
        a.platform.take_backed(),
        [(table, BLOCK_BYTES, Backing::Small)]
    );
    // Once.
    a.zone.free(&a.platform, blocks[18], BLOCK_PAGES, DECAY);
    assert!(!decay(&a).iter().any(|&(start, _)| start == table + used));
    assert_eq!(a.platform.take_backed(), []);
    // They can be used all the same.
    take(&a, BLOCK_PAGES);
    take(&a, BLOCK_PAGES);
    assert_eq!(take(&a, BLOCK_PAGES).0 as usize % BLOCK_PAGES, 0);
    assert_eq!(a.validate(), Ok(()));
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
        [(start, BLOCK_BYTES, Backing::Small)]
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
