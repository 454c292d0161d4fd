//! The hardened mode: objects of any size that tell about every misuse which software can see.
//!
//! ```text
//!  small  │ bytes of the caller │ canary │ trailer │        a slot of a size class
//!  large  │ header, read only │ … bytes of the caller │ guard, closed │     pages
//!  empty  a closed address of its own
//! ```
//!
//! | state of a small object | trailer says | bytes |
//! |---|---|---|
//! | in use | in use, and how many bytes | the caller's; the canary behind them |
//! | in quarantine, or free | free | filled |
//! | of a fresh slab | 0 | any |
//!
//! Trailers and headers are combined with a random word and their address. So a free knows exactly
//! whether the object is in use: each double free, also of an object that waits on another CPU, is
//! seen at once. The canary shows a write over the end when the object is freed, the fill a write
//! into free memory when the object leaves quarantine or is handed out. A freed object waits a
//! random time ([`quarantine`](crate::cache::quarantine)); `large` says what differs there.
//!
//! | file | concept |
//! |---|---|
//! | `small` | objects of size classes: trailer, canary, fill |
//! | `large` | objects of pages: header, guards, room to grow |
//! | `words` | canary and fill, a word at a time |
//!
//! The mode is chosen for all calls of an allocator before the first (the tunable `hardened`),
//! because objects with and without a trailer differ. Callers: faces; any thread.

mod large;
mod small;
mod words;

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::SIZE_MAX;
use crate::misuse::Reason;
use crate::platform::{PAGE_SIZE, Platform};

/// Bytes of the addresses of objects without bytes, and bytes from one to the next.
const EMPTY_BYTES: usize = 1 << 24;
const EMPTY_STEP: usize = 16;

const IN_USE: u64 = 0x6a09;
const FREE: u64 = 0xbb67;
/// In the header of a large object that has a trailer.
const GROWN: u64 = 0x3c6e;

/// Largest object in bytes: what is added to it does not overflow.
const HARD_MAX: usize = SIZE_MAX - 4 * PAGE_SIZE;

/// Bytes of a trailer.
const TRAILER: usize = 8;

/// What a trailer or a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// In use, with so many bytes.
    InUse(usize),
    /// Free since its last use, with so many bytes.
    Free(usize),
    /// In use, with a trailer at the end of so many bytes.
    Grown(usize),
    /// A fresh slot.
    Fresh,
    /// Neither: it was overwritten, or is none.
    Nonsense,
}

/// Why a call with a free object is wrong.
#[cold]
fn why_freed(call: &str) -> Reason {
    match call {
        "free of" => Reason::Freed,
        _ => Reason::UsedAfterFree,
    }
}

/// The code of the words at an address.
#[derive(Clone, Copy)]
struct Code(u64);

impl Code {
    fn encode(self, tag: u64, bytes: usize) -> u64 {
        (tag << 48 | bytes as u64) ^ self.0
    }

    fn decode(self, word: u64) -> Says {
        if word == 0 {
            return Says::Fresh;
        }
        let word = word ^ self.0;
        let bytes = (word & ((1 << 48) - 1)) as usize;
        match word >> 48 {
            IN_USE => Says::InUse(bytes),
            FREE => Says::Free(bytes),
            GROWN => Says::Grown(bytes),
            _ => Says::Nonsense,
        }
    }
}

impl<P: Platform> Allocator<P> {
    /// Whether the allocator's callers must use the functions of this mode.
    #[inline]
    pub fn is_hardened(&self) -> bool {
        self.tunables().hardened == 1
    }

    fn code_of(&self, object: *mut u8) -> Code {
        let address = (object as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Code(self.secret().rotate_left(29) ^ address)
    }

    /// Allocates `bytes` bytes aligned to `align` (a power of two; at least 16 bytes are given);
    /// zeroed with [`ZERO`](Gfp::ZERO). Null without memory.
    ///
    /// An object of no bytes has an address that cannot be accessed.
    #[inline(never)]
    pub fn hard_alloc(&self, bytes: usize, align: usize, gfp: Gfp) -> *mut u8 {
        if bytes == 0 && align <= EMPTY_STEP {
            return self.alloc_empty();
        }
        if bytes > HARD_MAX {
            return null_mut();
        }
        let object = match small::class_for(bytes, align) {
            Some(class) => self.alloc_small(class, bytes, gfp - Gfp::ZERO),
            None => self.alloc_guarded(bytes, align, gfp - Gfp::ZERO),
        };
        if gfp.contains(Gfp::ZERO) && !object.is_null() {
            // SAFETY: ours, and that long.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }

    /// Frees an object of [`hard_alloc`](Self::hard_alloc); null is ignored. Any other pointer, a
    /// second free, and an object that was written over its end end the process.
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer.
    #[inline(never)]
    pub unsafe fn hard_free(&self, object: *mut u8) {
        if object.is_null() || self.is_empty_object(object) {
            return;
        }
        match self.cache_of(object) {
            Some(cache) => self.free_small(cache, object),
            None => self.free_guarded(object),
        }
    }

    /// Bytes of a live object as they were requested; 0 for null. Any other pointer ends the
    /// process. `call` names the caller's call.
    #[inline(never)]
    pub fn hard_size(&self, object: *mut u8, call: &str) -> usize {
        if object.is_null() || self.is_empty_object(object) {
            return 0;
        }
        match self.cache_of(object) {
            Some(cache) => self.small_bytes(cache, object, call),
            None => self.guarded_bytes(object, call),
        }
    }

    /// Changes a live object's bytes; moves it if necessary. Null without memory for more bytes,
    /// and then the object is unchanged.
    ///
    /// # Safety
    ///
    /// `object` is live; after a success only the returned pointer is live.
    pub unsafe fn hard_realloc(&self, object: *mut u8, bytes: usize, align: usize) -> *mut u8 {
        let old = self.hard_size(object, "realloc of");
        if bytes > HARD_MAX {
            return null_mut();
        }
        let resized = match self.cache_of(object) {
            Some(cache) => self.resize_small(cache, object, (old, bytes)),
            None => self.resize_grown(object, bytes),
        };
        if let Some(resized) = resized {
            return resized;
        }
        let mut new = null_mut();
        if bytes > old && align <= PAGE_SIZE && small::class_for(bytes, align).is_none() {
            new = self.alloc_grown(bytes, Gfp::KERNEL);
        }
        if new.is_null() {
            new = self.hard_alloc(bytes, align, Gfp::KERNEL);
        }
        if !new.is_null() {
            // SAFETY: both are live, with at least the bytes copied; the caller gives up the old.
            unsafe {
                new.copy_from_nonoverlapping(object, old.min(bytes));
                self.hard_free(object);
            }
            return new;
        }
        if bytes > old {
            return null_mut();
        }
        self.shrink_here(object, old, bytes);
        object
    }

    /// Gives an object fewer bytes where it lies: there is no memory to move it to. A plain large
    /// object keeps its bytes, because they end at its guard.
    #[cold]
    fn shrink_here(&self, object: *mut u8, old: usize, bytes: usize) {
        match self.cache_of(object) {
            Some(cache) => self.set_small(cache, object, old, bytes),
            None => self.shrink_grown(object, bytes),
        }
    }

    /// Ends the process if a live object was not requested with exactly these bytes, or with their
    /// next multiple of `align`. `call` names the caller's call.
    pub fn hard_check_size(&self, call: &str, object: *mut u8, bytes: usize, align: usize) {
        if align > PAGE_SIZE {
            return self.check_size(call, object, bytes, align);
        }
        let has = self.hard_size(object, call);
        let rounded = bytes.max(1).checked_next_multiple_of(align);
        if !object.is_null() && has != bytes && Some(has) != rounded {
            self.wrong_size(call, object, bytes, has);
        }
    }

    /// An address of its own that cannot be accessed.
    fn alloc_empty(&self) -> *mut u8 {
        // Acquire: pairs with the store below.
        let mut region = self.quarantine.empty.load(Acquire);
        if region.is_null() {
            let Some(fresh) = self.platform.reserve(EMPTY_BYTES, PAGE_SIZE) else {
                return null_mut();
            };
            // AcqRel: as above. Another thread may have been faster: then its region serves, and
            // this one stays reserved.
            let set =
                self.quarantine
                    .empty
                    .compare_exchange(null_mut(), fresh.as_ptr(), AcqRel, Acquire);
            region = set.err().unwrap_or(fresh.as_ptr());
        }
        // Relaxed: a count. After a million objects addresses come again.
        let n = self.quarantine.empties.fetch_add(1, Relaxed);
        region.wrapping_add(n * EMPTY_STEP % EMPTY_BYTES)
    }

    fn is_empty_object(&self, object: *mut u8) -> bool {
        // Acquire: as above.
        NonNull::new(self.quarantine.empty.load(Acquire)).is_some_and(|region| {
            (object as usize).wrapping_sub(region.as_ptr() as usize) < EMPTY_BYTES
        })
    }

    /// Ends the process: what a free object's or a live object's memory shows is wrong.
    #[cold]
    #[inline(never)]
    fn hard_misuse(&self, call: &str, object: *mut u8, why: Reason) -> ! {
        self.wrong(self.cache_of(object), call, object, why)
    }
}
