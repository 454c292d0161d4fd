//! A sheaf: an array of pointers to free objects of one cache.
//!
//! A sheaf lives in a *window* of [`SHEAF_BYTES`] bytes, aligned to its size:
//!
//! ```text
//!   word    0            1              2 and 3       4      5 … 510-c   511-c   512-c … 511
//!        link  c, cache and length  rcu head  allocator  (unused)    null    objects, oldest first
//! ```
//!
//! Here c is the capacity. The objects always end at the window's end, so one number says
//! everything: the *top*, the address of the newest object. The sheaf is empty if the word at the
//! top is null. It is full if the word behind the top begins another window. The window is the top
//! rounded down. A per-CPU slot holds only a top.
//!
//! Two windows without room are sentinels: in a slot they say why there is no sheaf
//! ([`slot`](crate::percpu::slot)). A sentinel looks empty to an allocation and full to a free, so
//! the fast paths need no test of their own.
//!
//! Ownership: the thread that takes a top out of a slot owns the sheaf, as a [`Sheaf`]. Sheaves
//! that no thread owns are in a slot or in a [`SheafList`](crate::percpu::sheaf_list::SheafList).
//! Callers: slow paths of `sheaf`, `prefill` and `rcu`.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::Relaxed;

use crate::grace::RcuHead;
use crate::layout::{Row, rows};
use crate::sync::atomic;

/// Bytes of a window, and its alignment in bytes.
pub const SHEAF_BYTES: usize = 4096;
const WORDS: usize = SHEAF_BYTES / 8;
/// Most objects that a sheaf can hold: for most small sizes whole slabs of 125 or 250 objects.
pub const MAX_CAPACITY: usize = 500;
/// Words before the objects and their terminating null.
const HEAD_WORDS: usize = 5;

/// The memory of a sheaf; the module describes the layout.
#[repr(C, align(4096))]
pub struct Window {
    /// The next window of a list.
    pub(super) link: Option<NonNull<Window>>,
    /// Also read by threads that do not own the sheaf.
    capacity: AtomicU16,
    cache: u16,
    len: u32,
    /// During a grace period: the deferral record, and its context: the `Base` or `Allocator`.
    pub(crate) rcu: RcuHead,
    pub(crate) allocator: *const (),
    objects: [*mut u8; WORDS - HEAD_WORDS],
}

const _: () = assert!(size_of::<Window>() == SHEAF_BYTES);
const _: () = assert!(HEAD_WORDS + 1 + MAX_CAPACITY <= WORDS);
/// Bytes from a window's start to its capacity (16 bits), for restartable sequences.
pub const CAPACITY_OFFSET: usize = core::mem::offset_of!(Window, capacity);

impl Window {
    pub(crate) const ROWS: &'static [Row] = rows!("Window", Self, [link, capacity, cache, len]);

    const fn none() -> Window {
        Window {
            link: None,
            capacity: AtomicU16::new(0),
            cache: 0,
            len: 0,
            rcu: RcuHead::NEW,
            allocator: core::ptr::null(),
            objects: [core::ptr::null_mut(); WORDS - HEAD_WORDS],
        }
    }
}

/// Two windows without room, never written: the sentinels.
#[repr(transparent)]
struct Sentinels([Window; 2]);

// SAFETY: never written.
unsafe impl Sync for Sentinels {}

static SENTINELS: Sentinels = Sentinels([Window::none(), Window::none()]);

pub(super) const LAST: usize = SHEAF_BYTES - 8;

/// The top that stands for "no sheaf here".
#[inline]
pub fn bootstrap() -> usize {
    &raw const SENTINELS.0[0] as usize + LAST
}

/// The top that stands for "this CPU is stopped", or "this cache is closed".
#[inline]
pub fn stopped() -> usize {
    &raw const SENTINELS.0[1] as usize + LAST
}

/// The windows of both sentinels, one behind the other: bootstrap, stopped.
pub(crate) const fn sentinels() -> *const () {
    (&raw const SENTINELS).cast()
}

/// Whether the top is a sentinel.
#[inline]
pub fn is_sentinel(top: usize) -> bool {
    top == bootstrap() || top == stopped()
}

/// Capacity of the sheaf with this top, in objects; 0 for a sentinel.
#[inline]
pub(super) fn capacity_at(top: usize) -> usize {
    let window = (top & !(SHEAF_BYTES - 1)) as *const Window;
    // SAFETY: windows are never unmapped, and a capacity is set before the window is published.
    let capacity = unsafe { &(*window).capacity };
    // Relaxed: a peek, or the owner's own store.
    usize::from(capacity.load(Relaxed))
}

/// A sheaf that the holder owns: no other thread accesses its objects.
#[derive(Debug)]
pub struct Sheaf {
    window: NonNull<Window>,
    len: usize,
}

impl Sheaf {
    /// Makes an empty sheaf in a window, for `capacity` objects of the cache with index `cache`.
    ///
    /// # Safety
    ///
    /// The window stays valid until the program ends, and the caller owns it.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0 or above [`MAX_CAPACITY`].
    pub unsafe fn new(window: NonNull<Window>, capacity: usize, cache: usize) -> Self {
        assert!((1..=MAX_CAPACITY).contains(&capacity));
        // SAFETY: the caller owns the window.
        unsafe {
            // Relaxed: other threads only peek at it.
            (*window.as_ptr()).capacity.store(capacity as u16, Relaxed);
            (*window.as_ptr()).cache = cache as u16;
            (*window.as_ptr()).objects[WORDS - 1 - HEAD_WORDS - capacity] = core::ptr::null_mut();
        }
        Self { window, len: 0 }
    }

    /// An empty sheaf in a window of its own.
    #[cfg(test)]
    pub(super) fn leaked(capacity: usize) -> Self {
        let window = NonNull::from(std::boxed::Box::leak(Window::none().into()));
        // SAFETY: leaked, so valid until the program ends, and ours.
        unsafe { Self::new(window, capacity, 1) }
    }

    /// The sheaf of a top that was taken out of a slot.
    ///
    /// # Safety
    ///
    /// The caller took `top` out of a slot, so it owns the sheaf; `top` is not a sentinel.
    pub unsafe fn from_top(top: usize) -> Self {
        debug_assert!(!is_sentinel(top) && top.is_multiple_of(8));
        let address = top & !(SHEAF_BYTES - 1);
        let empty = address + LAST - 8 * capacity_at(top);
        Self {
            // SAFETY: a window is never at address 0.
            window: unsafe { NonNull::new_unchecked(address as *mut Window) },
            len: (top - empty) / 8,
        }
    }

    /// The word that a slot holds for this sheaf. The thread that takes it out owns the sheaf.
    #[inline]
    pub fn into_top(self) -> usize {
        self.window.as_ptr() as usize + LAST - 8 * (self.capacity() - self.len)
    }

    /// Raises the capacity to `capacity` objects; the objects stay in order.
    ///
    /// # Panics
    ///
    /// If `capacity` is below the sheaf's own or above [`MAX_CAPACITY`].
    pub fn widen(&mut self, capacity: usize) {
        assert!((self.capacity()..=MAX_CAPACITY).contains(&capacity));
        let old = self.first();
        // SAFETY: we own the window. The objects and the null before them fit, before and after.
        unsafe {
            // Relaxed: other threads only peek at it.
            (*self.window.as_ptr())
                .capacity
                .store(capacity as u16, Relaxed);
            let new = self.first();
            atomic::reads(old, 8 * self.len);
            atomic::writes(new.wrapping_sub(1), 8 * (self.len + 1));
            core::ptr::copy(old, new, self.len);
            new.sub(1).write(core::ptr::null_mut());
        }
    }

    /// The window with its objects; [`from_window`](Self::from_window) is the inverse.
    pub fn keep(self) -> NonNull<Window> {
        atomic::writes(self.window.as_ptr(), 8);
        // SAFETY: we own the window.
        unsafe { (*self.window.as_ptr()).len = self.len as u32 };
        self.window
    }

    /// The sheaf that [`keep`](Self::keep) turned into a window.
    ///
    /// # Safety
    ///
    /// The caller owns the window, and nothing has changed it since `keep`.
    pub unsafe fn from_window(window: NonNull<Window>) -> Self {
        atomic::reads(window.as_ptr(), 8);
        // SAFETY: the caller owns the window.
        let len = unsafe { window.as_ref().len } as usize;
        Self { window, len }
    }

    /// The window of an empty sheaf, for its next use.
    pub fn into_window(self) -> NonNull<Window> {
        debug_assert!(self.is_empty());
        self.window
    }

    /// Objects that the sheaf can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        // SAFETY: we own the window. Relaxed: this thread owns the sheaf.
        unsafe { (*self.window.as_ptr()).capacity.load(Relaxed) as usize }
    }

    /// Index of the cache that the sheaf serves.
    pub fn cache(&self) -> usize {
        // SAFETY: we own the window.
        unsafe { self.window.as_ref().cache as usize }
    }

    /// Objects in the sheaf.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no object is in the sheaf.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the sheaf has no room.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == self.capacity()
    }

    #[inline]
    fn first(&self) -> *mut *mut u8 {
        let capacity = self.capacity();
        // SAFETY: the objects begin `capacity` words before the window's end.
        unsafe { self.window.as_ptr().cast::<*mut u8>().add(WORDS - capacity) }
    }

    /// The objects, oldest first.
    #[inline]
    pub fn objects(&self) -> &[*mut u8] {
        atomic::reads(self.first(), 8 * self.len);
        // SAFETY: we own the window, and its first `len` objects are set.
        unsafe { core::slice::from_raw_parts(self.first(), self.len) }
    }

    /// Prefetches the object array: reads each of its cache lines, which another CPU may have
    /// written. The misses overlap here; later uses would take them one by one.
    pub fn prefetch(&self) {
        const LINE: usize = 64 / size_of::<usize>();
        let lines = self.objects().iter().rev().step_by(LINE);
        core::hint::black_box(lines.fold(0, |all, &object| all | object as usize));
    }

    /// The objects, oldest first, for reordering.
    #[inline]
    pub fn objects_mut(&mut self) -> &mut [*mut u8] {
        atomic::writes(self.first(), 8 * self.len);
        // SAFETY: as in `objects`, and we are borrowed uniquely.
        unsafe { core::slice::from_raw_parts_mut(self.first(), self.len) }
    }

    /// The room behind the newest object. After filling it from its start, call
    /// [`grow`](Self::grow).
    #[inline]
    pub fn room(&mut self) -> &mut [*mut u8] {
        let (capacity, len) = (self.capacity(), self.len);
        atomic::writes(self.first().wrapping_add(len), 8 * (capacity - len));
        // SAFETY: the words between the newest object and the window's end are ours and initialised
        // (a fresh window is zeroed).
        unsafe { core::slice::from_raw_parts_mut(self.first().add(len), capacity - len) }
    }

    /// Moves the newest objects of the sheaf to the front of an array, as many as there are or the
    /// array holds; returns how many.
    pub fn pop_into(&mut self, out: &mut [*mut u8]) -> usize {
        let n = self.len().min(out.len());
        let rest = self.len() - n;
        out[..n].copy_from_slice(&self.objects()[rest..]);
        self.truncate(rest);
        n
    }

    /// Moves the first objects of an array into the sheaf, as many as it has room for; returns how
    /// many.
    pub fn extend_from(&mut self, objects: &[*mut u8]) -> usize {
        let room = self.room();
        let n = room.len().min(objects.len());
        room[..n].copy_from_slice(&objects[..n]);
        self.grow(n);
        n
    }

    /// Adds `n` objects that were written to [`room`](Self::room).
    #[inline]
    pub fn grow(&mut self, n: usize) {
        debug_assert!(self.len + n <= self.capacity());
        self.len += n;
    }

    /// Adds an object.
    ///
    /// # Panics
    ///
    /// If the sheaf is full.
    #[inline]
    pub fn push(&mut self, object: *mut u8) {
        self.room()[0] = object;
        self.len += 1;
    }

    /// Removes the newest object; `None` if the sheaf is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<*mut u8> {
        let object = *self.objects().last()?;
        self.len -= 1;
        Some(object)
    }

    /// Removes all objects but the oldest `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percpu::slot::Top;

    #[test]
    fn a_sheaf_gives_back_what_it_got_newest_first() {
        for capacity in [1, 4, 12, 28, 60, MAX_CAPACITY] {
            let mut s = Sheaf::leaked(capacity);
            for i in 1..=capacity {
                assert!(!s.is_full());
                s.push((i * 16) as *mut u8);
            }
            assert!(s.is_full());
            for i in (1..=capacity).rev() {
                assert_eq!(s.pop(), Some((i * 16) as *mut u8));
            }
            assert_eq!(s.pop(), None);
        }
    }

    #[test]
    fn a_glance_at_a_top_whose_window_is_another_sheaf_s_by_now_is_no_more_than_wrong() {
        let window = Sheaf::leaked(60).window;
        // SAFETY: ours.
        let tops = [1, 60].map(|capacity| unsafe { Sheaf::new(window, capacity, 1) }.into_top());
        for capacity in [1, 4, 28, 60, MAX_CAPACITY] {
            // SAFETY: ours.
            let _ = unsafe { Sheaf::new(window, capacity, 2) };
            for top in tops {
                assert!(Top(top).len() <= capacity);
            }
        }
    }

    #[test]
    fn a_top_tells_empty_and_full_and_leads_back_to_the_sheaf() {
        for capacity in [1, 28, MAX_CAPACITY] {
            let mut s = Sheaf::leaked(capacity);
            for len in 0..=capacity {
                assert_eq!(s.len(), len);
                let top = s.into_top();
                assert_eq!(Top(top).is_empty(), len == 0);
                assert_eq!(Top(top).is_full(), len == capacity);
                // SAFETY: the word at a top is the newest object, or null.
                assert_eq!(unsafe { *(top as *const usize) } == 0, len == 0);
                // SAFETY: `into_top` has just given it up.
                s = unsafe { Sheaf::from_top(top) };
                if len < capacity {
                    s.push(16 as *mut u8);
                }
            }
        }
    }

    #[test]
    fn a_sheaf_that_is_widened_keeps_its_objects_and_ends_in_a_null() {
        for (old, new) in [(1, 2), (28, 60), (60, 61), (124, MAX_CAPACITY), (7, 7)] {
            for len in 0..=old {
                let mut s = Sheaf::leaked(old);
                (1..=len).for_each(|i| s.push((i * 16) as *mut u8));
                s.widen(new);
                (len + 1..=new).for_each(|i| s.push((i * 16) as *mut u8));
                assert!(s.is_full());
                (1..=new)
                    .rev()
                    .for_each(|i| assert_eq!(s.pop(), Some((i * 16) as *mut u8)));
                // SAFETY: the word at a top is the newest object, or null.
                assert_eq!(unsafe { *(s.into_top() as *const usize) }, 0);
            }
        }
    }

    #[test]
    fn sentinels_are_both_empty_and_full() {
        for top in [bootstrap(), stopped()] {
            assert!(Top(top).is_full() && Top(top).is_empty() && is_sentinel(top));
        }
        assert_ne!(bootstrap(), stopped());
    }
}
