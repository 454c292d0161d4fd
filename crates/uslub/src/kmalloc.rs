//! Objects of any size, without a cache: the kernel's kmalloc family. Any thread may call.

use std::ptr::NonNull;

use uslub_core::Gfp;

use crate::instance::{ALLOCATOR, allocator_for, is_ready};
use crate::rcu;

/// Allocates `bytes` bytes (0 counts as 1), aligned to 16 bytes (sizes up to 8: to 8 bytes). `None`
/// if there is no memory, or if `gfp` does not allow getting it. With [`Gfp::ZERO`] the bytes are
/// zero, otherwise undefined.
///
/// [`Gfp::NOSPIN`] is the kernel's `kmalloc_nolock`. It may be called in a signal handler, if the
/// allocator was used outside of signal handlers before.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc, ksize};
/// let text = kmalloc(100, Gfp::KERNEL | Gfp::ZERO).expect("memory");
/// // SAFETY: 100 bytes of ours, freed once.
/// unsafe {
///     assert_eq!(text.cast::<[u8; 100]>().read(), [0; 100]);
///     assert!(ksize(text.as_ptr()) >= 100);
///     kfree(text.as_ptr());
/// }
/// ```
#[inline]
pub fn kmalloc(bytes: usize, gfp: Gfp) -> Option<NonNull<u8>> {
    NonNull::new(allocator_for(gfp)?.kmalloc(bytes, gfp))
}

/// As [`kmalloc`], from a memory node if it has memory; with [`Gfp::THISNODE`] from no other node.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc_node};
/// let near = kmalloc_node(64, Gfp::KERNEL | Gfp::THISNODE, 0).expect("memory of node 0");
/// // SAFETY: freed once.
/// unsafe { kfree(near.as_ptr()) };
/// assert_eq!(kmalloc_node(64, Gfp::KERNEL | Gfp::THISNODE, 4096), None);
/// ```
pub fn kmalloc_node(bytes: usize, gfp: Gfp, nid: usize) -> Option<NonNull<u8>> {
    NonNull::new(allocator_for(gfp)?.kmalloc_node(bytes, gfp, nid))
}

/// As [`kmalloc`], aligned to `align` bytes.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc_aligned};
/// let page = kmalloc_aligned(100, 4096, Gfp::KERNEL).expect("memory");
/// assert_eq!(page.as_ptr() as usize % 4096, 0);
/// // SAFETY: freed once.
/// unsafe { kfree(page.as_ptr()) };
/// ```
///
/// # Panics
///
/// If `align` is not a power of two.
#[inline]
pub fn kmalloc_aligned(bytes: usize, align: usize, gfp: Gfp) -> Option<NonNull<u8>> {
    assert!(align.is_power_of_two(), "an alignment is a power of two");
    NonNull::new(allocator_for(gfp)?.kmalloc_aligned(bytes, align, gfp))
}

/// Frees an object of [`kmalloc`], of [`Buckets`](crate::Buckets) or of any cache; null is ignored.
///
/// Any other pointer ends the process with a message.
///
/// ```
/// use uslub::{Gfp, RawCache, kfree};
/// let cache = RawCache::new("inode", 600)?;
/// let inode = cache.alloc(Gfp::KERNEL).expect("memory");
/// // SAFETY: freed once.
/// unsafe { kfree(inode.as_ptr()) };
/// assert_eq!(cache.stats().info.live_objs(), 0);
/// # Ok::<(), uslub::CreateError>(())
/// ```
///
/// # Safety
///
/// Nobody uses the object any longer.
#[inline]
pub unsafe fn kfree(object: *mut u8) {
    // SAFETY: passed on. An allocator that was never set up owns no object, and reports the
    // pointer.
    unsafe { ALLOCATOR.kfree(object) };
}

/// As [`kfree`], in a context of the caller's choice; [`Gfp::NOSPIN`] is the kernel's
/// `kfree_nolock`.
///
/// An object above 256 KiB is a mapping, which only the system can take back. Where `gfp` forbids
/// this, the object leaks, with a warning.
///
/// ```
/// use uslub::{Gfp, kfree_with, kmalloc};
/// let object = kmalloc(64, Gfp::KERNEL).expect("memory");
/// // SAFETY: freed once.
/// unsafe { kfree_with(object.as_ptr(), Gfp::NOSPIN) };
/// ```
///
/// # Safety
///
/// As for [`kfree`].
#[inline]
pub unsafe fn kfree_with(object: *mut u8, gfp: Gfp) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_with(object, gfp) };
}

/// As [`kfree`], after a grace period. Until then readers that found the object before may read it.
///
/// ```
/// use uslub::{Gfp, kfree_rcu, kmalloc, rcu_barrier};
/// let old = kmalloc(300, Gfp::KERNEL).expect("memory");
/// // SAFETY: freed once, and nobody finds it any more.
/// unsafe { kfree_rcu(old.as_ptr()) };
/// rcu_barrier();
/// ```
///
/// # Safety
///
/// As for [`kfree`], and no new reader finds the object.
///
/// # Panics
///
/// If no grace period was set and the feature `crossbeam-epoch` is off.
pub unsafe fn kfree_rcu(object: *mut u8) {
    rcu::require();
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_rcu(object) };
    rcu::hand_over();
}

/// Changes the size of an object of [`kmalloc`]; may move it. `None` if there is no memory, and
/// then the object is unchanged. A null object is allocated.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc, krealloc};
/// let small = kmalloc(8, Gfp::KERNEL).expect("memory").cast::<u64>();
/// // SAFETY: ours; only the new pointer is used afterwards.
/// unsafe {
///     small.write(7);
///     let large = krealloc(small.cast().as_ptr(), 1 << 20, Gfp::KERNEL).expect("memory");
///     assert_eq!(large.cast::<u64>().read(), 7);
///     kfree(large.as_ptr());
/// }
/// ```
///
/// # Safety
///
/// `object` is null, or live and allocated by [`kmalloc`] or this function. After a success only
/// the returned pointer is live.
#[inline]
pub unsafe fn krealloc(object: *mut u8, bytes: usize, gfp: Gfp) -> Option<NonNull<u8>> {
    // SAFETY: passed on.
    NonNull::new(unsafe { allocator_for(gfp)?.krealloc(object, bytes, gfp) })
}

/// Usable bytes of an object of [`kmalloc`] or of any cache; 0 for null.
///
/// Any other pointer ends the process with a message.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc, ksize};
/// assert_eq!(ksize(std::ptr::null_mut()), 0);
/// let line = kmalloc(70, Gfp::KERNEL).expect("memory");
/// assert!(ksize(line.as_ptr()) >= 70);
/// // SAFETY: freed once.
/// unsafe { kfree(line.as_ptr()) };
/// ```
pub fn ksize(object: *mut u8) -> usize {
    if object.is_null() && !is_ready() {
        0
    } else {
        ALLOCATOR.ksize(object)
    }
}
