//! Where the slots of a slab begin, told by one multiplication.
//!
//! Slabs are aligned to their size. So the low bits of an address are its offset in its slab, and
//! the slab's descriptor need not be read. Callers: frees of `cache` and `kmalloc`, and the fast
//! paths of the malloc library.

/// What a free needs to check a slot: `address & mask`, times `factor` without the carry, is below
/// `factor` if a slot begins at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a slab less 1.
    pub mask: u32,
    /// 2^32 / size, rounded up.
    pub factor: u32,
}

impl Shape {
    /// Of no slot: no pointer passes.
    pub const NONE: Self = Self { mask: 0, factor: 0 };

    /// The shape of slabs of `bytes` bytes (a power of two) with slots of `size` bytes; `None` if
    /// 32 bits cannot tell exactly.
    ///
    /// With `factor = (2^32 + e) / size` and `e < size`, an offset `q · size + r` gives
    /// `q · e + r · factor`. For `r = 0` this is below `factor` if `q · e` is, so slabs must be
    /// small. For `r > 0` it is not.
    ///
    /// ```
    /// use uslub_core::slab::shape::Shape;
    /// let shape = Shape::new(32768, 48).unwrap();
    /// assert!(shape.begins(0x7000_0000 + 48 * 5));
    /// assert!(!shape.begins(0x7000_0000 + 48 * 5 + 16));
    /// ```
    pub const fn new(bytes: usize, size: usize) -> Option<Self> {
        if !bytes.is_power_of_two() || bytes > 1 << 18 || size < 8 || size > 8192 || size > bytes {
            return None;
        }
        let factor = (1u64 << 32).div_ceil(size as u64) as u32;
        let error = factor as u64 * size as u64 - (1u64 << 32);
        if (bytes as u64 / size as u64 + 1) * error >= factor as u64 {
            return None;
        }
        Some(Self {
            mask: (bytes - 1) as u32,
            factor,
        })
    }

    /// Whether a slot begins at an address inside a slab.
    #[inline]
    pub const fn begins(self, address: usize) -> bool {
        (address as u32 & self.mask).wrapping_mul(self.factor) < self.factor
    }

    /// Both numbers in one word; never 0.
    pub const fn word(self) -> u64 {
        self.mask as u64 | (self.factor as u64) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size_class::{NR_CLASSES, class_size};

    #[test]
    fn a_shape_tells_exactly_where_slots_begin() {
        for class in 1..=NR_CLASSES {
            let size = class_size(class);
            for order in 0..=6 {
                let bytes = 4096usize << order;
                if bytes < size {
                    continue;
                }
                let shape = Shape::new(bytes, size).expect("every class has one");
                for offset in 0..bytes {
                    assert_eq!(
                        shape.begins(3 * bytes + offset),
                        offset % size == 0,
                        "{size} {offset}"
                    );
                }
            }
        }
        assert!(!Shape::NONE.begins(0) && !Shape::NONE.begins(4096));
        assert_eq!(Shape::new(4096, 8192), None);
        assert_eq!(Shape::new(5000, 8), None);
    }
}
