//! How the range of pages grows: the system is asked for a little ahead, and for less where that is
//! too much.

use super::SYSTEM_PAGE;
use crate::support::{Setup, Slub};
use uslub_core::Gfp;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::{PAGE_SIZE, Platform};

fn setup() -> Box<Slub> {
    Setup::default().on_pages_of(SYSTEM_PAGE).build()
}

/// Takes a block; tells how often the system was asked for memory.
fn take_block(a: &Slub) -> usize {
    let before = a.platform.calls().commit;
    let run = a.zone.alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL);
    assert!(run.is_some());
    a.platform.calls().commit - before
}

#[test]
fn the_more_blocks_there_are_the_more_are_committed_at_once() {
    let a = setup();
    let calls = |blocks| -> usize { (0..blocks).map(|_| take_block(&a)).sum() };
    // One by one; with the first, tables for eight.
    assert_eq!(calls(8), 8 + 4);
    // Two each four times, three three times, four twice; with those, tables for the next 32, some
    // of whose pages are there.
    let tables = calls(25) - 9;
    let longer = a.platform.system_page() > PAGE_SIZE;
    assert!(tables == 3 || longer && tables < 3, "{tables}");
    let later = calls(95);
    assert!(later <= 11 + 3 * 4, "{later}");
    assert_eq!(a.zone.validate(), Ok(()));
}

#[test]
fn where_several_blocks_are_too_many_one_is_had() {
    let a = setup();
    // Eight one by one; from then on two at once. With the first two, tables for the next 32.
    (0..10).for_each(|_| _ = take_block(&a));
    a.platform.fail(0, 1);
    assert_eq!(take_block(&a), 2, "in vain, and for one");
    assert_eq!(a.platform.heal(), 1);
    assert_eq!(take_block(&a), 1);
    assert_eq!(a.zone.validate(), Ok(()));
}

#[test]
fn no_more_than_what_is_reserved_is_committed() {
    // Eight one by one, a last one where two would be due.
    let setup = Setup {
        reserve: 18 << 20,
        page: SYSTEM_PAGE,
        ..Setup::default()
    };
    let a = setup.build();
    (0..9).for_each(|_| _ = take_block(&a));
    let more = a.zone.alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL);
    assert!(more.is_none());
    assert_eq!(a.zone.validate(), Ok(()));
}

#[test]
fn the_first_block_is_there_for_those_who_may_not_ask_the_system() {
    for gfp in [Gfp::NOWAIT, Gfp::NOSPIN] {
        let a = setup();
        let take = |gfp| a.zone.alloc(&a.platform, 1, 1, gfp).is_some();
        assert!(!take(gfp), "nothing is there yet");
        assert!(take(Gfp::KERNEL));
        let before = a.platform.calls();
        let more = (0..BLOCK_PAGES).take_while(|_| take(gfp)).count();
        assert_eq!(more, BLOCK_PAGES - 1);
        assert_eq!(a.platform.calls(), before);
        assert_eq!(a.zone.validate(), Ok(()));
    }
}
