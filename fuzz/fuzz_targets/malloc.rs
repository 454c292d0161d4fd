//! The malloc family against a plain model, on the library's own fast path.
//!
//! The fuzzer itself runs on uslub too. Each object is filled with a byte of its own in all its
//! usable bytes and looked at when it is resized or freed, so that a lost, moved or overlapping
//! object is seen. At the end of an input all is freed, and now and then all structures are
//! checked.

#![no_main]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uslub_fuzz::{Size, is_filled};
use uslub_malloc_linked as _;

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut c_void;
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn realloc(object: *mut c_void, bytes: usize) -> *mut c_void;
    fn reallocarray(object: *mut c_void, count: usize, size: usize) -> *mut c_void;
    fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void;
    fn memalign(align: usize, bytes: usize) -> *mut c_void;
    fn posix_memalign(out: *mut *mut c_void, align: usize, bytes: usize) -> c_int;
    fn valloc(bytes: usize) -> *mut c_void;
    fn pvalloc(bytes: usize) -> *mut c_void;
    fn malloc_usable_size(object: *mut c_void) -> usize;
    fn free(object: *mut c_void);
    fn free_sized(object: *mut c_void, bytes: usize);
    fn free_aligned_sized(object: *mut c_void, align: usize, bytes: usize);
    fn malloc_trim(pad: usize) -> c_int;
    fn uslub_validate() -> c_int;
}

/// One call; numbers select among what is there.
#[derive(Arbitrary, Debug)]
enum Step {
    Malloc(Size),
    Calloc(u8, Size),
    Realloc(u8, Size),
    /// Again and again, by so much.
    Grow(u8, u8, u16),
    ReallocArray(u8, u8, Size),
    AlignedAlloc(u8, Size),
    Memalign(u16, Size),
    PosixMemalign(u8, Size),
    Pages(bool, Size),
    Free(u8),
    FreeSized(u8),
    /// So many of one size, then all but each so many-th freed.
    Comb(u8, Size, u8),
    /// More than there is.
    Absurd(u8, u64),
    Trim,
}

struct Object {
    start: *mut u8,
    bytes: usize,
    usable: usize,
    byte: u8,
    /// What was asked for; 1: nothing.
    align: usize,
}

/// Bytes of all objects at most.
const HELD_MAX: usize = 8 << 20;
const OBJECTS_MAX: usize = 2048;

#[derive(Default)]
struct World {
    objects: Vec<Object>,
    held: usize,
    next: u8,
}

impl World {
    fn has_room(&self, bytes: usize) -> bool {
        self.held + bytes <= HELD_MAX && self.objects.len() < OBJECTS_MAX
    }

    fn enter(&mut self, start: *mut c_void, bytes: usize, align: usize) {
        assert!(!start.is_null(), "{bytes} bytes are not to be had");
        let natural = match bytes {
            16.. => 16,
            _ => 8,
        };
        assert!(start.addr().is_multiple_of(align.max(natural)));
        // SAFETY: live.
        let usable = unsafe { malloc_usable_size(start) };
        assert!(usable >= bytes);
        self.next = self.next.wrapping_add(1);
        let (start, byte) = (start.cast::<u8>(), self.next);
        // SAFETY: ours, and so long.
        unsafe { start.write_bytes(byte, usable) };
        self.held += usable;
        self.objects.push(Object {
            start,
            bytes,
            usable,
            byte,
            align,
        });
    }

    /// Takes an object out; its bytes must be as they were.
    fn leave(&mut self, at: u8) -> Option<Object> {
        if self.objects.is_empty() {
            return None;
        }
        // The newest first: at is small more often than not.
        let at = self.objects.len() - 1 - usize::from(at) % self.objects.len();
        let object = self.objects.swap_remove(at);
        self.held -= object.usable;
        assert!(is_filled(object.start, object.usable, object.byte));
        Some(object)
    }

    fn resize(&mut self, at: u8, bytes: usize, how: impl Fn(*mut c_void, usize) -> *mut c_void) {
        if !self.has_room(bytes) {
            return;
        }
        let Some(old) = self.leave(at) else {
            return self.enter(how(null_mut(), bytes), bytes, 1);
        };
        let moved = how(old.start.cast(), bytes);
        if bytes == 0 {
            return assert!(moved.is_null(), "freed");
        }
        let kept = old.bytes.min(bytes);
        assert!(!moved.is_null() && is_filled(moved.cast(), kept, old.byte));
        self.enter(moved, bytes, 1);
    }

    fn absurd(&mut self, which: u8, extra: u64) {
        let bytes = isize::MAX as usize + 1 + (extra >> 1) as usize;
        let mut out = null_mut();
        // SAFETY: nothing is handed out; the object stays live when its resizing fails.
        unsafe {
            let answer = match which % 6 {
                0 => malloc(bytes),
                1 => calloc(bytes, 1 + (extra % 9) as usize),
                2 => aligned_alloc(1 << (extra % 12), bytes),
                3 => {
                    assert_ne!(posix_memalign(&raw mut out, 64, bytes), 0);
                    out
                }
                4 => pvalloc(bytes),
                _ => match self.objects.last() {
                    Some(object) => {
                        let answer = reallocarray(object.start.cast(), bytes, 2);
                        assert!(is_filled(object.start, object.usable, object.byte));
                        answer
                    }
                    None => realloc(null_mut(), bytes),
                },
            };
            assert!(answer.is_null(), "{bytes} bytes of memory cannot be");
        }
    }

    fn step(&mut self, step: Step) {
        // SAFETY, for all calls: objects are live, and freed or resized once.
        match step {
            Step::Malloc(size) if self.has_room(size.bytes()) => {
                self.enter(unsafe { malloc(size.bytes()) }, size.bytes(), 1);
            }
            Step::Calloc(count, size) => {
                let (count, size) = (usize::from(count % 16), size.bytes());
                if self.has_room(count * size) {
                    // SAFETY: see above.
                    let start = unsafe { calloc(count, size) };
                    assert!(!start.is_null() && is_filled(start.cast(), count * size, 0));
                    self.enter(start, count * size, 1);
                }
            }
            Step::Realloc(at, size) => {
                // SAFETY: see above.
                self.resize(at, size.bytes(), |object, bytes| unsafe {
                    realloc(object, bytes)
                });
            }
            Step::Grow(at, times, by) => {
                for _ in 0..times % 32 {
                    let Some(object) = self.objects.last() else {
                        return;
                    };
                    let bytes = object.bytes + usize::from(by) + 1;
                    // SAFETY: see above.
                    self.resize(at, bytes, |object, bytes| unsafe { realloc(object, bytes) });
                }
            }
            Step::ReallocArray(at, count, size) => {
                let count = usize::from(count % 8).max(1);
                self.resize(at, count * size.bytes(), |object, bytes| unsafe {
                    // SAFETY: see above.
                    reallocarray(object, count, bytes / count)
                });
            }
            Step::AlignedAlloc(shift, size) if self.has_room(size.bytes()) => {
                let align = 1 << (shift % 22);
                // SAFETY: see above.
                let start = unsafe { aligned_alloc(align, size.bytes()) };
                self.enter(start, size.bytes(), align);
            }
            Step::Memalign(align, size) if self.has_room(size.bytes()) => {
                let align = usize::from(align);
                // SAFETY: see above.
                let start = unsafe { memalign(align, size.bytes()) };
                self.enter(start, size.bytes(), align.max(1).next_power_of_two());
            }
            Step::PosixMemalign(shift, size) if self.has_room(size.bytes()) => {
                let (align, mut start) = (1usize << (shift % 22), null_mut());
                // SAFETY: see above.
                let error = unsafe { posix_memalign(&raw mut start, align, size.bytes()) };
                if align < 8 {
                    return assert_eq!((error, start), (libc::EINVAL, null_mut()));
                }
                assert_eq!(error, 0);
                self.enter(start, size.bytes(), align);
            }
            Step::Pages(whole, size) if self.has_room(size.bytes()) => {
                // SAFETY: see above.
                let start = unsafe {
                    match whole {
                        true => pvalloc(size.bytes()),
                        false => valloc(size.bytes()),
                    }
                };
                let bytes = match whole {
                    true => size.bytes().next_multiple_of(4096),
                    false => size.bytes(),
                };
                self.enter(start, bytes, 4096);
            }
            Step::Free(at) => {
                if let Some(object) = self.leave(at) {
                    // SAFETY: see above.
                    unsafe { free(object.start.cast()) };
                }
            }
            Step::FreeSized(at) => {
                if let Some(object) = self.leave(at) {
                    let start = object.start.cast();
                    // SAFETY: see above.
                    unsafe {
                        match object.align {
                            1 => free_sized(start, object.bytes),
                            align => free_aligned_sized(start, align, object.bytes),
                        }
                    }
                }
            }
            Step::Comb(count, size, teeth) => {
                let bytes = size.bytes().min(1 << 16);
                let before = self.objects.len();
                for _ in 0..count {
                    if self.has_room(bytes) {
                        // SAFETY: see above.
                        self.enter(unsafe { malloc(bytes) }, bytes, 1);
                    }
                }
                for i in (before..self.objects.len()).rev() {
                    if i % (usize::from(teeth) + 2) != 0 {
                        self.step(Step::Free((self.objects.len() - 1 - i).min(255) as u8));
                    }
                }
            }
            Step::Absurd(which, extra) => self.absurd(which, extra),
            // SAFETY: see above.
            Step::Trim => drop(unsafe { malloc_trim(0) }),
            _ => {}
        }
    }
}

static INPUTS: AtomicU32 = AtomicU32::new(0);

fuzz_target!(|steps: Vec<Step>| {
    let mut world = World::default();
    for step in steps {
        world.step(step);
    }
    while let Some(object) = world.leave(0) {
        // SAFETY: live, freed once.
        unsafe { free(object.start.cast()) };
    }
    // Relaxed: one thread.
    if INPUTS.fetch_add(1, Relaxed).is_multiple_of(32) {
        // SAFETY: no other thread uses the allocator now.
        assert_eq!(unsafe { uslub_validate() }, 0);
    }
});
