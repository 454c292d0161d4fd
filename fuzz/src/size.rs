//! Sizes of objects, so that each way of the allocator is taken often.

use arbitrary::Arbitrary;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX, NR_CLASSES, class_size};

/// Bytes of an object.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Size {
    /// Up to 255 bytes.
    Tiny(u8),
    /// About the size of a class.
    Class(u8, i8),
    /// A size class.
    Small(u16),
    /// A run of pages.
    Large(u32),
    /// About the border between runs and mappings.
    Border(i16),
    /// A mapping of its own.
    Huge(u32),
}

impl Size {
    /// In bytes.
    pub fn bytes(self) -> usize {
        match self {
            Size::Tiny(n) => usize::from(n),
            Size::Class(class, off) => {
                let class = 1 + usize::from(class) % NR_CLASSES;
                class_size(class).saturating_add_signed(isize::from(off / 16))
            }
            Size::Small(n) => usize::from(n) % (CLASS_MAX + 1),
            Size::Large(n) => CLASS_MAX + n as usize % (LARGE_MAX - CLASS_MAX),
            Size::Border(off) => LARGE_MAX.saturating_add_signed(isize::from(off)),
            Size::Huge(n) => LARGE_MAX + n as usize % (1 << 20),
        }
    }
}
