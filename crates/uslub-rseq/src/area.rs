//! Finding the area that the C library registered.

/// Bytes of the area up to and with `mm_cid`.
#[cfg(target_arch = "x86_64")]
const WITH_MM_CID: usize = 28;
/// Offsets of the area's fields.
#[cfg(target_arch = "x86_64")]
mod field {
    pub const CPU_ID: usize = 4;
    pub const MM_CID: usize = 24;
}

/// What indexes the table of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The concurrency id: at most as many as threads that run at once.
    MmCid,
    /// The CPU's number.
    CpuId,
}

/// Where the running thread's area is.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Offset of the area from the thread pointer, in bytes.
    pub offset: isize,
    /// Offset of the index field from the thread pointer, in bytes.
    pub index_offset: isize,
    /// What that field is.
    pub index: Index,
}

impl Area {
    /// The area that the C library registered for this thread; `None` where there is none
    /// (old C libraries and kernels, emulators, tunables that forbid it).
    #[cfg(target_arch = "x86_64")]
    pub fn adopt() -> Option<Self> {
        let (offset, size) = library_symbols()?;
        if size == 0 {
            return None;
        }
        let area = Self {
            offset,
            index_offset: offset + field::CPU_ID as isize,
            index: Index::CpuId,
        };
        if (area.index_here() as i32) < 0 {
            // Not registered after all.
            return None;
        }
        if feature_size(size) >= WITH_MM_CID {
            return Some(Self {
                index_offset: offset + field::MM_CID as isize,
                index: Index::MmCid,
                ..area
            });
        }
        Some(area)
    }

    /// There is no support for this architecture yet.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn adopt() -> Option<Self> {
        None
    }

    /// The index of the CPU that this thread runs on; may be stale at once.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn index_here(&self) -> u32 {
        let index: u32;
        // SAFETY: a load from this thread's own area.
        unsafe {
            core::arch::asm!(
                "mov {index:e}, fs:[{at}]",
                index = out(reg) index,
                at = in(reg) self.index_offset,
                options(nostack, preserves_flags, readonly),
            );
        }
        index
    }

    /// There is no support for this architecture yet.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    pub fn index_here(&self) -> u32 {
        0
    }
}

/// The C library's `__rseq_offset` and `__rseq_size`, if it has them.
#[cfg(target_arch = "x86_64")]
fn library_symbols() -> Option<(isize, usize)> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two entries of the global offset table; weak symbols, so 0 when absent.
    unsafe {
        core::arch::asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: the C library defines them as constants of these types.
    Some(unsafe { (offset.read(), size.read() as usize) })
}

/// Bytes of the area that the kernel fills in, given what the library says: 20 and 32
/// are sizes of old layouts, for which the kernel knows better.
#[cfg(target_arch = "x86_64")]
fn feature_size(size: usize) -> usize {
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    if size != 20 && size != 32 {
        return size;
    }
    // SAFETY: looks a number up.
    let feature = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as usize;
    if feature == 0 { 20 } else { feature.min(32) }
}
