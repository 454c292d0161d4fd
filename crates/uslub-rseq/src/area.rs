//! A thread's rseq area: where it lies, and whether the kernel knows it.
//!
//! The C library's area is preferred, our own is the fallback. In both, the offset from the thread
//! pointer is the same for every thread. `cpu_id` tells a thread's state: a negative number means
//! not registered (see `own.rs`). All functions act on the calling thread.

use crate::thread::{library_symbols, load};

/// Bytes of the area up to and including `mm_cid`.
const WITH_MM_CID: usize = 28;
/// Offsets of the area's fields, in bytes.
mod field {
    pub const CPU_ID: usize = 4;
    pub const NODE_ID: usize = 20;
    pub const MM_CID: usize = 24;
}

/// What indexes the table of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The concurrency id: below the number of threads that can run at once.
    MmCid,
    /// The CPU's number.
    CpuId,
}

impl Index {
    /// Bytes from the area's start to the field with this index.
    pub const fn field(self) -> usize {
        match self {
            Index::MmCid => field::MM_CID,
            Index::CpuId => field::CPU_ID,
        }
    }
}

/// Where each thread's area lies.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Offset of the area from the thread pointer, in bytes.
    pub offset: isize,
    /// Offset of the index field from the thread pointer, in bytes.
    pub index_offset: isize,
    /// What the index field holds.
    pub index: Index,
    /// Whether the area is our own, not the C library's.
    pub own: bool,
}

impl Area {
    /// The area that the C library registered for this thread. `None` if there is none (old C
    /// libraries and kernels, emulators, tunables that forbid it).
    pub fn adopt() -> Option<Self> {
        let (offset, size) = library_area().filter(|&(_, size)| size != 0)?;
        let area = Self::with_features(offset, feature_size(size), false);
        area.is_registered_here().then_some(area)
    }

    /// An area of our own, registered for this thread. `None` if the kernel refuses: it has no
    /// sequences, or other code has registered an area.
    pub fn register_own() -> Option<Self> {
        let area = Self::with_features(crate::own::offset(), feature_size(0), true);
        area.register_here().then_some(area)
    }

    fn with_features(offset: isize, features: usize, own: bool) -> Self {
        let index = if features >= WITH_MM_CID {
            Index::MmCid
        } else {
            Index::CpuId
        };
        Self {
            offset,
            index_offset: offset + index.field() as isize,
            index,
            own,
        }
    }

    /// The same area with another index field.
    #[must_use]
    pub fn with_index(self, index: Index) -> Self {
        Self {
            index_offset: self.offset + index.field() as isize,
            index,
            ..self
        }
    }

    /// Whether this thread is registered, so that its fields can be trusted.
    #[inline]
    pub fn is_registered_here(&self) -> bool {
        (load(self.offset + field::CPU_ID as isize) as i32) >= 0
    }

    /// Registers this thread if the area is our own and the thread is not registered yet. Returns
    /// whether it is registered now.
    pub fn register_here(&self) -> bool {
        match load(self.offset + field::CPU_ID as isize) as i32 {
            0.. => true,
            -1 => self.own && crate::own::register(),
            _ => false,
        }
    }

    /// Registers this thread's area if it only looks registered, as memory copied from another task
    /// does. Returns whether it is registered now. True, too, if the area does not look registered.
    pub fn register_copy(&self) -> bool {
        !self.is_registered_here() || crate::own::register_at(self.offset)
    }

    /// The index of the CPU that this thread runs on; may be stale at once.
    #[inline]
    pub fn index_here(&self) -> u32 {
        load(self.index_offset)
    }

    /// The number of the CPU that this thread runs on; may be stale at once.
    #[inline]
    pub fn cpu_here(&self) -> u32 {
        load(self.offset + field::CPU_ID as isize)
    }

    /// The memory node of the CPU that this thread runs on; may be stale at once. `None` if the
    /// area does not hold it.
    #[inline]
    pub fn node_here(&self) -> Option<u32> {
        // A kernel that fills in the concurrency id fills in the node too.
        (self.index == Index::MmCid).then(|| load(self.offset + field::NODE_ID as isize))
    }
}

/// Offset and size of the C library's area, both in bytes; `None` if it has no such symbols.
fn library_area() -> Option<(isize, usize)> {
    let (offset, size) = library_symbols();
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: the C library defines both as constants of these types.
    Some(unsafe { (offset.read(), size.read() as usize) })
}

/// Bytes of the area that the kernel fills in. `size` is the C library's figure: 20 and 32 are
/// sizes of old layouts, for which the kernel's own figure is exact. 0 stands for our own area of
/// 32 bytes.
fn feature_size(size: usize) -> usize {
    const AT_RSEQ_FEATURE_SIZE: usize = 27;
    if ![0, 20, 32].contains(&size) {
        return size;
    }
    let feature = crate::initial::auxiliary(AT_RSEQ_FEATURE_SIZE);
    if feature == 0 { 20 } else { feature.min(32) }
}
