//! Buckets: a second set of kmalloc's size classes, for one kind of object.
//!
//! A set is created, shared by reference among threads, and destroyed or dropped once.

use std::fmt;
use std::ptr::NonNull;

use uslub_core::Gfp;
use uslub_core::kmalloc::buckets;
use uslub_linux::{Linux, complain};

use crate::error::{CreateError, Leaked};
use crate::instance::{ALLOCATOR, allocator};

/// A set of size classes of the caller's own, with a name: the kernel's `kmem_buckets`.
///
/// For objects whose size comes from outside: they share no slab with other objects, and the table
/// of caches names them `prefix-64` and the like. Objects above 8 KiB come from pages, as kmalloc's
/// do. The cache of a bucket is made when it is first needed. Dropping the set destroys its caches.
/// Objects still in use are then reported on standard error, and their memory is never reused.
///
/// With the feature `allocator-api2`, `&Buckets` is an `Allocator`:
///
/// ```
/// # #[cfg(feature = "allocator-api2")] {
/// use allocator_api2::vec::Vec;
/// use uslub::Buckets;
///
/// let messages = Buckets::new("msg").unwrap();
/// let mut message = Vec::new_in(&messages);
/// message.extend_from_slice(b"of any length");
/// assert!(uslub::slabinfo().rows().iter().any(|row| row.name() == "msg-16"));
/// # }
/// ```
pub struct Buckets {
    set: buckets::Buckets<Linux>,
    prefix: String,
}

impl Buckets {
    /// A set whose caches are named after `prefix`, which has 1 to 26 bytes.
    ///
    /// ```
    /// use uslub::{Buckets, CreateError};
    /// let replies = Buckets::new("reply")?;
    /// assert_eq!(format!("{replies:?}"), r#"Buckets { prefix: "reply" }"#);
    /// assert_eq!(Buckets::new(&"r".repeat(27)).err(), Some(CreateError::BadName));
    /// # Ok::<(), CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError::BadName`]; [`CreateError::NoMemory`] if there is no memory for the allocator.
    pub fn new(prefix: &str) -> Result<Self, CreateError> {
        allocator().ok_or(CreateError::NoMemory)?;
        Ok(Self {
            set: buckets::Buckets::new(prefix)?,
            prefix: prefix.to_owned(),
        })
    }

    /// Allocates `bytes` bytes (0 counts as 1), aligned as by [`kmalloc`](crate::kmalloc). `None`
    /// if there is no memory, or if `gfp` does not allow getting it.
    ///
    /// ```
    /// use uslub::{Buckets, Gfp};
    /// let set = Buckets::new("blob").unwrap();
    /// let blob = set.alloc(1234, Gfp::KERNEL).expect("memory");
    /// // SAFETY: of this set, freed once.
    /// unsafe { set.free(blob.as_ptr()) };
    /// ```
    #[inline]
    pub fn alloc(&self, bytes: usize, gfp: Gfp) -> Option<NonNull<u8>> {
        NonNull::new(self.set.alloc(&ALLOCATOR, bytes, gfp))
    }

    /// As [`alloc`](Self::alloc), aligned to `align` bytes.
    ///
    /// ```
    /// use uslub::{Buckets, Gfp};
    /// let frames = Buckets::new("frame")?;
    /// let frame = frames.alloc_aligned(1500, 64, Gfp::KERNEL).expect("memory");
    /// assert_eq!(frame.as_ptr() as usize % 64, 0);
    /// // SAFETY: of this set, freed once.
    /// unsafe { frames.free(frame.as_ptr()) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If `align` is not a power of two.
    #[inline]
    pub fn alloc_aligned(&self, bytes: usize, align: usize, gfp: Gfp) -> Option<NonNull<u8>> {
        assert!(align.is_power_of_two(), "an alignment is a power of two");
        NonNull::new(self.set.alloc_aligned(&ALLOCATOR, bytes, align, gfp))
    }

    /// Frees an object; null is ignored. A pointer that is no object ends the process with a
    /// message.
    ///
    /// ```
    /// use std::ptr::null_mut;
    /// use uslub::{Buckets, Gfp};
    /// let cookies = Buckets::new("cookie")?;
    /// let cookie = cookies.alloc(40, Gfp::KERNEL).map_or(null_mut(), |cookie| cookie.as_ptr());
    /// // SAFETY: null, or of this set and freed once.
    /// unsafe { cookies.free(cookie) };
    /// assert!(cookies.destroy().is_ok(), "nothing is in use");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The object is of this set, and nobody uses it any longer.
    #[inline]
    pub unsafe fn free(&self, object: *mut u8) {
        // SAFETY: passed on.
        unsafe { ALLOCATOR.kfree(object) };
    }

    /// Destroys the caches of the set.
    ///
    /// ```
    /// use uslub::{Buckets, Gfp};
    /// let queries = Buckets::new("query")?;
    /// let query = queries.alloc(200, Gfp::KERNEL).expect("memory");
    /// let leaked = queries.destroy().unwrap_err();
    /// assert_eq!(leaked.addresses(), [query.as_ptr() as usize]);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Leaked`] if objects are still in use. Their memory and their caches stay. Objects above 8
    /// KiB are in no cache and are not checked.
    pub fn destroy(self) -> Result<(), Leaked> {
        let mut addresses = Vec::new();
        // SAFETY: this function owns the set.
        let count = unsafe {
            self.set
                .destroy(&ALLOCATOR, |object| addresses.push(object as usize))
        };
        if count == 0 {
            return Ok(());
        }
        Err(Leaked {
            name: self.prefix.clone(),
            addresses,
        })
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        // SAFETY: this was the only handle. After `destroy` no caches are left.
        let count = unsafe { self.set.destroy(&ALLOCATOR, |_| ()) };
        if count > 0 {
            complain(format_args!(
                "buckets '{}': dropped with {count} objects in use, whose memory is kept",
                self.prefix
            ));
        }
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets")
            .field("prefix", &self.prefix)
            .finish()
    }
}
