//! The end of a cache: objects that are still in use, and grace periods that must be waited for.
//!
//! | at the end | `destroy` | drop |
//! |---|---|---|
//! | objects are in use | an error with their addresses | a report on standard error |
//! | this thread is in a read-side section to wait for | a panic | a report; the cache stays |

use std::mem::ManuallyDrop;

use uslub_linux::complain;

use crate::error::{LISTED, Leaked};
use crate::instance::ALLOCATOR;
use crate::raw::RawCache;
use crate::{ctor, rcu};

impl RawCache {
    /// Destroys the cache.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("unclosed", 64)?;
    /// let object = cache.alloc(Gfp::KERNEL).expect("memory");
    /// let leaked = cache.destroy().unwrap_err();
    /// assert_eq!(leaked.addresses(), [object.as_ptr() as usize]);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Leaked`] if objects are still in use. Their memory and the cache stay.
    ///
    /// # Panics
    ///
    /// Inside a read-side section of [`Epoch`](crate::Epoch), if objects or slabs of the cache may
    /// wait for it.
    pub fn destroy(self) -> Result<(), Leaked> {
        let this = ManuallyDrop::new(self);
        assert!(
            !this.waits_for_me(),
            "cache '{}': destroyed inside a read-side section, for whose end it must wait",
            this.name()
        );
        let mut addresses = Vec::new();
        // SAFETY: this function owns the cache.
        let leaked = unsafe { this.end(|object| addresses.push(object as usize)) };
        if leaked == 0 {
            return Ok(());
        }
        Err(Leaked {
            name: this.name().to_owned(),
            addresses,
        })
    }

    /// Whether the end of the cache would wait for a read-side section that this thread is in.
    fn waits_for_me(&self) -> bool {
        rcu::is_pinned() && (self.is_typesafe() || self.kmem_cache().may_wait_for_readers())
    }

    /// Destroys the cache and its constructor; returns the number of leaked objects.
    ///
    /// # Safety
    ///
    /// Nobody uses the cache any longer.
    unsafe fn end(&self, leaked: impl FnMut(*mut u8)) -> usize {
        let ctor = self.kmem_cache().ctor;
        // SAFETY: passed on.
        let count = unsafe { ALLOCATOR.destroy(self.kmem_cache(), leaked) };
        rcu::hand_over();
        if let Some(ctor) = ctor
            && count == 0
        {
            // SAFETY: the cache is gone. No other cache has the constructor, because constructed
            // caches are never shared.
            unsafe { ctor::release(ctor) };
        }
        count
    }
}

impl Drop for RawCache {
    fn drop(&mut self) {
        if self.waits_for_me() {
            return complain(format_args!(
                "cache '{}': dropped inside a read-side section, for whose end it must wait; it is kept",
                self.name()
            ));
        }
        let mut listed = 0;
        let name = self.kmem_cache().name();
        // SAFETY: this was the only handle.
        let count = unsafe {
            self.end(|object| {
                if listed < LISTED {
                    complain(format_args!("cache '{name}': {object:p} is still in use"));
                }
                listed += 1;
            })
        };
        if count > 0 {
            complain(format_args!(
                "cache '{name}': dropped with {count} objects in use, whose memory is kept"
            ));
        }
    }
}
