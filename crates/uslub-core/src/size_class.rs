//! Size classes: the object sizes of kmalloc's caches.
//!
//! | bytes | classes |
//! |---|---|
//! | 8 | one |
//! | 16 … 256 | multiples of 16 |
//! | each doubling above | ten |
//!
//! Eight of the ten divide 16 times the lower end of the doubling into 15 to 8 objects: they fill a
//! slab. The other two, a quarter and a half above the lower end, serve aligned requests.
//!
//! The caches have fixed identities (class c has index c) and are created when first used. A slab
//! is aligned to its size, so a class is aligned to the largest power of two that divides it.
//! Callers: `kmalloc`.

use crate::percpu::{CACHES_A_PAGE, CacheId};
use crate::platform::PAGE_SIZE;

/// Size of the largest class, in bytes.
pub const CLASS_MAX: usize = 8 << 10;
/// Number of size classes.
pub const NR_CLASSES: usize = count_classes();

/// Bytes of the class after the one of `bytes` bytes.
const fn class_after(bytes: usize) -> usize {
    if bytes < 256 {
        return bytes + if bytes == 8 { 8 } else { 16 };
    }
    let power = 1 << bytes.ilog2();
    let mut objects = 15;
    while 16 * power / objects / 16 * 16 <= bytes {
        objects -= 1;
    }
    let fitting = 16 * power / objects / 16 * 16;
    let (aligned, more) = (power / 4 * 5, power / 4 * 6);
    if bytes < aligned && aligned < fitting {
        aligned
    } else if bytes < more && more < fitting {
        more
    } else {
        fitting
    }
}

const fn count_classes() -> usize {
    let (mut classes, mut bytes) = (1, 8);
    while bytes < CLASS_MAX {
        bytes = class_after(bytes);
        classes += 1;
    }
    classes
}

// An index fits into a byte, and all classes of a CPU lie in one region page.
const _: () = assert!(NR_CLASSES < CACHES_A_PAGE);

/// Bytes of each class, by class number; entry 0 is unused.
static CLASS_SIZES: [u16; NR_CLASSES + 1] = {
    let mut sizes = [0; NR_CLASSES + 1];
    let (mut class, mut bytes) = (1, 8);
    while class <= NR_CLASSES {
        sizes[class] = bytes as u16;
        bytes = class_after(bytes);
        class += 1;
    }
    sizes
};

/// Bytes of class `class` (1 to [`NR_CLASSES`]).
///
/// ```
/// use uslub_core::size_class::{NR_CLASSES, class_size};
/// assert_eq!([1, 2, 10, 17, 18, NR_CLASSES].map(class_size), [8, 16, 144, 256, 272, 8192]);
/// ```
#[inline]
pub fn class_size(class: usize) -> usize {
    usize::from(CLASS_SIZES[class])
}

/// The class for each size up to [`CLASS_MAX`] bytes, by `(bytes + 7) / 8`.
pub static CLASS_TABLE: [u8; CLASS_MAX / 8 + 1] = class_table();

const fn class_table() -> [u8; CLASS_MAX / 8 + 1] {
    let mut table = [1; CLASS_MAX / 8 + 1];
    let (mut words, mut class, mut bytes) = (0, 1, 8);
    while words < table.len() {
        if words * 8 > bytes {
            bytes = class_after(bytes);
            class += 1;
        }
        table[words] = class;
        words += 1;
    }
    table
}

/// The class for `bytes`, at most [`CLASS_MAX`].
#[inline]
pub fn class_of(bytes: usize) -> CacheId {
    CacheId::of_class(CLASS_TABLE[bytes.div_ceil(8)])
}

/// The first class for `bytes` (0 counts as 1) that is aligned to `align` bytes; `None` if only
/// pages are.
pub(crate) fn aligned_class(bytes: usize, align: usize) -> Option<usize> {
    if bytes > CLASS_MAX || align > PAGE_SIZE {
        return None;
    }
    let first = usize::from(CLASS_TABLE[bytes.max(1).div_ceil(8)]);
    (first..=NR_CLASSES).find(|&class| class_size(class).is_multiple_of(align))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_gets_the_smallest_class_that_holds_it() {
        assert_eq!(class_size(NR_CLASSES), CLASS_MAX);
        for bytes in 0..=CLASS_MAX {
            let class = class_of(bytes).index();
            assert_eq!(class_of(bytes), CacheId::from_index(class));
            assert!(class_size(class) >= bytes);
            assert!(class == 1 || class_size(class - 1) < bytes, "{bytes}");
        }
    }

    #[test]
    fn classes_are_at_most_a_seventh_apart_above_128_bytes() {
        for class in 1..NR_CLASSES {
            let (size, next) = (class_size(class), class_size(class + 1));
            assert!(size < next && (next == 16 || next.is_multiple_of(16)));
            if size >= 128 {
                assert!((next - size) * 7 <= size, "{size} {next}");
            }
        }
    }
}
