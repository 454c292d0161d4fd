//! Shrinkers: functions of the program that free objects when memory is short.
//!
//! A shrinker is registered, called by threads that allocate, and unregistered when its guard is
//! dropped; [`Record`] has the states.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use uslub_core::cache::KmemCache;
use uslub_core::cache::shrinker::{self, ShrinkerId};
use uslub_linux::Linux;

use crate::error::CreateError;
use crate::instance::{ALLOCATOR, allocator};
use crate::raw::RawCache;

/// A function that can free objects, registered as long as this value lives.
///
/// Before an allocation with `GFP_KERNEL` fails, the shrinkers of its cache and the shrinkers of no
/// cache are called. Each gets the number of objects to free, and returns how many it freed. One
/// thread at a time runs them, in the middle of its allocation. So a shrinker must not wait for a
/// lock that is held over allocations (use `try_lock`). It may allocate and free, but such an
/// allocation fails without calling shrinkers again. A shrinker that panics counts as having freed
/// nothing.
///
/// ```
/// use std::sync::{LazyLock, Mutex};
/// use uslub::{Cache, Object};
///
/// static PAGES: LazyLock<Cache<[u8; 4096]>> =
///     LazyLock::new(|| Cache::builder("page").limit(256 << 10).build().unwrap());
/// static CLEAN: Mutex<Vec<Object<'static, [u8; 4096]>>> = Mutex::new(Vec::new());
///
/// let shrinker = PAGES.shrinker(|wanted| match CLEAN.try_lock() {
///     Ok(mut clean) => {
///         let keep = clean.len().saturating_sub(wanted);
///         clean.drain(keep..).count()
///     }
///     Err(_) => 0,
/// })?;
/// // The cache holds some 64 pages, but old ones make room.
/// for n in 0..1000 {
///     let page = PAGES.alloc([n as u8; 4096])?;
///     CLEAN.lock().unwrap().push(page);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is unregistered when it is dropped"]
pub struct Shrinker<'c> {
    id: ShrinkerId,
    record: NonNull<Record>,
    cache: PhantomData<&'c RawCache>,
}

// SAFETY: the record is accessed under the rules of its fields.
unsafe impl Send for Shrinker<'_> {}
// SAFETY: as above; a shared reference gives no access.
unsafe impl Sync for Shrinker<'_> {}

type Scan = Box<dyn FnMut(usize) -> usize + Send>;

/// | running | orphaned | state |
/// |---|---|---|
/// | no | no | the guard owns the record |
/// | yes | no | the reclaiming thread is inside `scan` |
/// | yes | yes | `scan` dropped the guard: the record is freed when `scan` returns |
struct Record {
    /// Called only by the reclaiming thread, and never inside itself.
    scan: UnsafeCell<Scan>,
    running: AtomicBool,
    orphaned: AtomicBool,
}

/// Registers a function that frees objects of any kind when memory is short; see [`Shrinker`].
///
/// ```
/// use std::sync::Mutex;
/// static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// let shrinker = uslub::shrinker(|wanted| match SPARE.try_lock() {
///     Ok(mut spare) => {
///         let keep = spare.len().saturating_sub(wanted);
///         spare.drain(keep..).count()
///     }
///     Err(_) => 0,
/// })?;
/// # Ok::<(), uslub::CreateError>(())
/// ```
///
/// # Errors
///
/// [`CreateError::TooManyShrinkers`]; [`CreateError::NoMemory`] if there is no memory for the
/// allocator.
pub fn shrinker<F>(scan: F) -> Result<Shrinker<'static>, CreateError>
where
    F: FnMut(usize) -> usize + Send + 'static,
{
    allocator().ok_or(CreateError::NoMemory)?;
    Shrinker::register(None, scan)
}

impl Shrinker<'_> {
    pub(crate) fn register<F>(
        cache: Option<&KmemCache<Linux>>,
        scan: F,
    ) -> Result<Self, CreateError>
    where
        F: FnMut(usize) -> usize + Send + 'static,
    {
        let record = Box::into_raw(Box::new(Record {
            scan: UnsafeCell::new(Box::new(scan)),
            running: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
        }));
        let shrinker = shrinker::Shrinker {
            scan: run,
            data: record.cast_const().cast(),
        };
        // SAFETY: the record lives until it is unregistered.
        match unsafe { ALLOCATOR.register_shrinker(cache, shrinker) } {
            Some(id) => Ok(Self {
                id,
                // SAFETY: from a box.
                record: unsafe { NonNull::new_unchecked(record) },
                cache: PhantomData,
            }),
            None => {
                // SAFETY: just made, and not registered.
                drop(unsafe { Box::from_raw(record) });
                Err(CreateError::TooManyShrinkers)
            }
        }
    }
}

unsafe fn run(data: *const (), wanted: usize) -> usize {
    let record = data.cast_mut().cast::<Record>();
    // SAFETY: registered, so the record lives. Only one thread reclaims, and never inside a
    // shrinker.
    let freed = unsafe {
        // Relaxed, here and below: only this thread reads it, until the allocator's lock passes the
        // record on.
        (*record).running.store(true, Relaxed);
        let scan = &mut *(*record).scan.get();
        let freed = catch_unwind(AssertUnwindSafe(|| scan(wanted)));
        // Relaxed: as above.
        (*record).running.store(false, Relaxed);
        freed
    };
    // SAFETY: as above; the closure that dropped its guard left the record to this thread.
    unsafe {
        // Relaxed: as above.
        if (*record).orphaned.load(Relaxed) {
            drop(Box::from_raw(record));
        }
    }
    freed.unwrap_or_else(|panic| {
        // The panic was reported. Its drop could panic again.
        std::mem::forget(panic);
        0
    })
}

impl Drop for Shrinker<'_> {
    fn drop(&mut self) {
        ALLOCATOR.unregister_shrinker(self.id);
        // SAFETY: no other thread can be inside the shrinker now.
        unsafe {
            // Relaxed: as in `run`.
            if self.record.as_ref().running.load(Relaxed) {
                self.record.as_ref().orphaned.store(true, Relaxed);
            } else {
                drop(Box::from_raw(self.record.as_ptr()));
            }
        }
    }
}

impl fmt::Debug for Shrinker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shrinker")
            .field(&self.id.into_raw())
            .finish()
    }
}
