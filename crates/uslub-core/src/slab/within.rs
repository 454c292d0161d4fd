//! Tells whether many addresses lie in one address range. Callers: `cache::bulk`.

use crate::policy::RANGE_CHECK_MIN;

/// Whether all addresses lie between the bounds `first` and `last`, both included. With `last` one
/// below `first`, no address does.
///
/// The bounds are less than 2^63 bytes apart; the addresses may be any.
#[inline]
pub(crate) fn all_in_range(addresses: &[*mut u8], (first, last): (usize, usize)) -> bool {
    if addresses.len() >= RANGE_CHECK_MIN {
        let (all, any) = addresses.iter().fold((usize::MAX, 0), |(all, any), &a| {
            (all & a as usize, any | a as usize)
        });
        // No address is below the AND of all addresses, or above their OR.
        if all >= first && any <= last {
            return true;
        }
    }
    let outside = addresses.iter().fold(0, |all, &address| {
        let address = address as usize;
        // One of the two differences is negative if the address lies outside.
        all | address.wrapping_sub(first) | last.wrapping_sub(address)
    });
    outside as isize >= 0
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use super::*;

    #[test]
    fn each_address_counts_and_each_bound() {
        let (first, last) = (0x7f00_1234_5000, 0x7f00_1234_8fff);
        for len in 1..20 {
            let mut addresses = std::vec![without_provenance_mut(first); len];
            for at in 0..len {
                for (address, is_within) in [
                    (first - 1, false),
                    (first, true),
                    (last, true),
                    (last + 1, false),
                    (0, false),
                    (first ^ 1 << 63, false),
                    (usize::MAX, false),
                ] {
                    addresses[at] = without_provenance_mut(address);
                    assert_eq!(all_in_range(&addresses, (first, last)), is_within);
                    assert!(!all_in_range(&addresses, (first, first - 1)));
                }
                addresses[at] = without_provenance_mut(first);
            }
        }
    }
}
