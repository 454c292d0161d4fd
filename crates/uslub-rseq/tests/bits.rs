//! The look at many addresses finds the bits that all have and those that any has, in whatever registers it looks.

use std::ptr::without_provenance_mut;

/// The same, one by one.
fn one_by_one(addresses: &[*mut u8]) -> (usize, usize) {
    addresses.iter().fold((usize::MAX, 0), |(all, any), &a| {
        (all & a as usize, any | a as usize)
    })
}

#[test]
fn each_address_is_looked_at() {
    let is_wide = uslub_rseq::move_wide(true);
    const MOST: usize = 260;
    let like: [*mut u8; MOST] = [without_provenance_mut(0x7f12_3456_7800); MOST];
    for len in 0..=MOST {
        for from in 0..=(MOST - len).min(8) {
            let mut addresses = like;
            let found = uslub_rseq::bits_of(&addresses[from..from + len]);
            assert!(found.is_none_or(|found| found == one_by_one(&like[..len])));
            assert_eq!(found.is_some(), is_wide && len >= 48, "{len} addresses");
            if found.is_none() {
                continue;
            }
            for odd in from..from + len {
                addresses[odd] = without_provenance_mut(0x55aa_0000_0ff8);
                let some = &addresses[from..from + len];
                assert_eq!(uslub_rseq::bits_of(some), Some(one_by_one(some)), "{odd}");
                addresses[odd] = like[odd];
            }
        }
    }
    uslub_rseq::move_wide(false);
    assert_eq!(uslub_rseq::bits_of(&like), None);
}
