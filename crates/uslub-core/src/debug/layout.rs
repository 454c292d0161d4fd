//! The layout of a slot with red zones, tracks and padding.
//!
//! Offsets count from the object, the address that the caller gets:
//!
//! ```text
//!  -left      0        size      inuse   link    tracks     asked   guard   end
//!   red zone │ object │ red zone │ link │ 2 of U │ size asked │ guard │ fill to the alignment
//! ```
//!
//! | part | present with |
//! |---|---|
//! | red zones, guard word | Z |
//! | link outside of the object | P, a constructor, RCU; Z and a small or a size class's object |
//! | tracks | U |
//! | size asked for | U, in a size class |
//!
//! Callers: `args`.

use super::DebugFlags;

const WORD: usize = size_of::<usize>();
/// Bytes of a track: who allocated, or who freed.
pub const TRACK_BYTES: usize = 24;

/// What the layout depends on.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bytes of an object.
    pub size: usize,
    /// Alignment of an object, a power of two and at least a word.
    pub align: usize,
    /// Whether a free object keeps its bytes: it has a constructor, or readers.
    pub keeps: bool,
    /// What is debugged.
    pub flags: DebugFlags,
}

/// Where the parts of a slot lie; all offsets are in bytes from the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugLayout {
    /// Bytes of an object.
    pub object: u32,
    /// Bytes in front of the object.
    pub left: u32,
    /// End of the right red zone, or of the gap behind the object.
    pub inuse: u32,
    /// Offset of a free object's link.
    pub link: u32,
    /// Offset of the first track; 0 for none.
    pub tracks: u32,
    /// Offset of the size that was asked for; 0 for none.
    pub asked: u32,
    /// End of the metadata: fill follows.
    pub end: u32,
    /// Distance from one object to the next.
    pub size: u32,
    /// Whether the bytes of free objects are poisoned.
    pub poisons: bool,
}

impl DebugLayout {
    /// The layout of a slot.
    pub fn of(wanted: Wanted) -> Self {
        let (size, align) = (wanted.size, wanted.align);
        let (keeps, flags) = (wanted.keeps, wanted.flags);
        let red = flags.contains(DebugFlags::RED_ZONE);
        let poison = flags.contains(DebugFlags::POISON);
        let users = flags.contains(DebugFlags::STORE_USER);
        let sized = users && flags.contains(DebugFlags::KMALLOC);
        let mut inuse = size.next_multiple_of(WORD);
        if red && inuse == size {
            inuse += WORD;
        }
        let mut end = inuse;
        let mut add = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let outside = poison || keeps || (red && (size < WORD || sized));
        let link = if outside {
            add(WORD)
        } else {
            size / 2 / WORD * WORD
        };
        let tracks = if users { add(2 * TRACK_BYTES) } else { 0 };
        let asked = if sized { add(WORD) } else { 0 };
        let guard = if red { WORD } else { 0 };
        let left = if red { WORD.next_multiple_of(align) } else { 0 };
        Self {
            object: size as u32,
            left: left as u32,
            inuse: inuse as u32,
            link: link as u32,
            tracks: tracks as u32,
            asked: asked as u32,
            end: end as u32,
            size: (left + end + guard).next_multiple_of(align) as u32,
            poisons: poison && !keeps,
        }
    }

    /// Bytes from the object to the end of its slot.
    pub fn behind(&self) -> usize {
        (self.size - self.left) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_a_slot_are_the_kernels() {
        let of = |size, flags| {
            DebugLayout::of(Wanted {
                size,
                align: 8,
                keeps: false,
                flags,
            })
        };
        let l = of(64, DebugFlags::RED_ZONE);
        assert_eq!(
            (l.left, l.inuse, l.link, l.end, l.size),
            (8, 72, 32, 72, 88)
        );
        let l = of(60, DebugFlags::RED_ZONE);
        assert_eq!((l.inuse, l.size), (64, 80));
        let l = of(64, DebugFlags::POISON);
        assert_eq!((l.left, l.inuse, l.link, l.size), (0, 64, 64, 72));
        let l = of(64, DebugFlags::DEFAULT);
        assert_eq!(
            (l.link, l.tracks, l.asked, l.end, l.size),
            (72, 80, 0, 128, 144)
        );
        let l = of(32, DebugFlags::DEFAULT | DebugFlags::KMALLOC);
        assert_eq!((l.link, l.tracks, l.asked, l.end), (40, 48, 96, 104));
    }

    proptest! {
        #[test]
        fn the_parts_of_a_slot_do_not_overlap(
            size in 1usize..70_000, shift in 3u32..13, keeps: bool, bits in 0u32..4096,
        ) {
            let align = 1usize << shift;
            let flags = DebugFlags::from_bits_truncate(bits);
            let l = DebugLayout::of(Wanted { size, align, keeps, flags });
            prop_assert!((l.left as usize).is_multiple_of(align));
            prop_assert!((l.size as usize).is_multiple_of(align));
            prop_assert!(l.inuse >= l.object && l.end >= l.inuse && l.behind() >= l.end as usize);
            prop_assert!(l.link + 8 <= l.inuse || (l.link >= l.inuse && l.link + 8 <= l.end));
            prop_assert!(!keeps || l.link >= l.object);
            prop_assert!(l.tracks == 0 || l.tracks as usize + 2 * TRACK_BYTES <= l.end as usize);
        }
    }
}
