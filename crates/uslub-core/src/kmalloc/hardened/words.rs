//! Bytes of one value in the memory of an object, which begins at a multiple of eight bytes.
//!
//! Words are read and written, not bytes: most objects have a few words. Callers: `small`, `large`.

use core::ops::Range;

pub(super) const CANARY: u8 = 0xc5;
pub(super) const FILL: u8 = 0xd7;

const WORD: usize = size_of::<u64>();

/// The bits of a word that lie behind its first `bytes` bytes.
fn behind(bytes: usize) -> u64 {
    u64::from_le_bytes([0xff; WORD]) << (8 * bytes)
}

/// Sets the bytes of a range to `value`. The range ends at a multiple of eight bytes.
///
/// # Safety
///
/// They are the caller's, and so is the word in which the range begins.
#[inline(always)]
pub(super) unsafe fn fill(start: *mut u8, range: Range<usize>, value: u8) {
    let all = u64::from_ne_bytes([value; WORD]);
    let mut at = range.start / WORD * WORD;
    if at < range.start {
        let mask = u64::from_le(behind(range.start - at));
        // SAFETY: passed on.
        unsafe {
            let word = start.add(at).cast::<u64>();
            word.write(word.read() & !mask | all & mask);
        }
        at += WORD;
    }
    while at + 4 * WORD <= range.end {
        // SAFETY: passed on.
        unsafe { start.add(at).cast::<[u64; 4]>().write([all; 4]) };
        at += 4 * WORD;
    }
    while at < range.end {
        // SAFETY: passed on.
        unsafe { start.add(at).cast::<u64>().write(all) };
        at += WORD;
    }
}

/// Whether the bytes of a range are all `value`. The range ends at a multiple of eight bytes.
///
/// # Safety
///
/// They are readable, and so is the word in which the range begins.
#[inline(always)]
pub(super) unsafe fn are(start: *const u8, range: Range<usize>, value: u8) -> bool {
    let all = u64::from_ne_bytes([value; WORD]);
    let mut at = range.start / WORD * WORD;
    let mut wrong = 0;
    if at < range.start {
        let mask = u64::from_le(behind(range.start - at));
        // SAFETY: passed on.
        wrong = (unsafe { start.add(at).cast::<u64>().read() } ^ all) & mask;
        at += WORD;
    }
    // Without an early end: a right object is read to its end. Four words at a time become two
    // instructions of the vector unit.
    while at + 4 * WORD <= range.end {
        // SAFETY: passed on.
        let four = unsafe { start.add(at).cast::<[u64; 4]>().read() };
        wrong |= four.iter().fold(0, |bad, word| bad | (word ^ all));
        at += 4 * WORD;
    }
    while at < range.end {
        // SAFETY: passed on.
        wrong |= unsafe { start.add(at).cast::<u64>().read() } ^ all;
        at += WORD;
    }
    wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_range_counts_and_no_other() {
        for from in 0..=64 {
            let mut words = [0u64; 10];
            let start = words.as_mut_ptr().cast::<u8>();
            // SAFETY: within the array.
            unsafe {
                fill(start, from..64, CANARY);
                assert!(are(start, from..64, CANARY));
                for at in 0..80 {
                    let byte = start.add(at);
                    assert_eq!(
                        byte.read() == CANARY,
                        (from..64).contains(&at),
                        "{from} {at}"
                    );
                    byte.write(!byte.read());
                    assert_eq!(are(start, from..64, CANARY), !(from..64).contains(&at));
                    byte.write(!byte.read());
                }
            }
        }
    }
}
