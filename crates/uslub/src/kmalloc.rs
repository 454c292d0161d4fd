//! Objects of any size, without a cache: the kernel's kmalloc family.

use std::ptr::NonNull;

use uslub_core::Gfp;

use crate::instance::{ALLOCATOR, allocator_for, is_ready};
use crate::rcu;

/// Allocates `bytes` (0 counts as 1), aligned to 16 bytes (sizes up to 8: to 8 bytes); `None` when
/// there is no memory, or `gfp` forbids to get it. With [`Gfp::ZERO`] the bytes are zero, else
/// undefined.
///
/// [`Gfp::NOSPIN`] is the kernel's `kmalloc_nolock`: it may be called in a signal handler, once the allocator was used outside one.
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

/// As [`kmalloc`], from memory of a node if there is any; with [`Gfp::THISNODE`] from no other.
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
/// When `align` is no power of two.
#[inline]
pub fn kmalloc_aligned(bytes: usize, align: usize, gfp: Gfp) -> Option<NonNull<u8>> {
    assert!(align.is_power_of_two(), "an alignment is a power of two");
    NonNull::new(allocator_for(gfp)?.kmalloc_aligned(bytes, align, gfp))
}

/// Frees an object of [`kmalloc`], of [`Buckets`](crate::Buckets) or of any cache; null is ignored.
///
/// A pointer that is no such object ends the process with a message.
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
/// Nobody uses the object any more.
#[inline]
pub unsafe fn kfree(object: *mut u8) {
    // SAFETY: passed on. An allocator that was never set up owns nothing, and says so.
    unsafe { ALLOCATOR.kfree(object) };
}

/// As [`kfree`], in a context of the caller's choice; [`Gfp::NOSPIN`] is the kernel's
/// `kfree_nolock`.
///
/// An object above 256 KiB, whose mapping only the system can take back, must not be freed where
/// that is forbidden: it then leaks, with a warning.
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
/// As there.
#[inline]
pub unsafe fn kfree_with(object: *mut u8, gfp: Gfp) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_with(object, gfp) };
}

/// As [`kfree`], after a grace period: until then readers that found the object before may look at
/// it.
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
/// As there, and nobody new finds the object.
///
/// # Panics
///
/// When no grace period was set and the feature `crossbeam-epoch` is off.
pub unsafe fn kfree_rcu(object: *mut u8) {
    rcu::require();
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_rcu(object) };
    rcu::hand_over();
}

/// Changes the size of an object of [`kmalloc`], moving it if need be; `None` when there is no
/// memory: then the object is as before. Null is allocated anew.
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
/// `object` is live, and was allocated by [`kmalloc`] or this function; after a success only the
/// returned pointer is.
#[inline]
pub unsafe fn krealloc(object: *mut u8, bytes: usize, gfp: Gfp) -> Option<NonNull<u8>> {
    // SAFETY: passed on.
    NonNull::new(unsafe { allocator_for(gfp)?.krealloc(object, bytes, gfp) })
}

/// Bytes that may be used of an object of [`kmalloc`] or of any cache; 0 for null.
///
/// A pointer that is no such object ends the process with a message.
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
