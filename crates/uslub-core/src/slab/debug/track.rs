//! Who allocated or freed an object: caller, thread, CPU, time and stack.
//!
//! A track lies behind its object, and names its stack in the [depot](super::depot). Callers:
//! `object`, before they take the list lock.

use crate::debug::DebugFlags;
use crate::debug::layout::TRACK_BYTES;
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::depot::STACK_MAX;

/// Who allocated or freed an object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The nearest caller's return address; 0 if there is no track.
    pub caller: usize,
    /// Handle of the stack in the depot; 0 for none.
    pub stack: u32,
    /// CPU, or concurrency id.
    pub cpu: u16,
    /// 1 if there is a track.
    pub is_set: u16,
    /// Thread.
    pub tid: u32,
    /// Time in milliseconds, modulo 2^32.
    pub time: u32,
}

const _: () = assert!(size_of::<Track>() == TRACK_BYTES);

/// Which of an object's two tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The last allocation.
    Alloc,
    /// The last free.
    Free,
}

impl<P: Platform> Base<P> {
    /// The caller of an operation on a cache; nobody if the cache has no tracks.
    #[cold]
    #[inline(never)]
    pub(crate) fn who(&self, cache: &SlabCache<P>) -> Track {
        if cache.layout.tracks == 0 || !cache.debug.get().contains(DebugFlags::STORE_USER) {
            return Track::default();
        }
        let mut frames = [0; STACK_MAX];
        let len = self.platform.callers(&mut frames).min(STACK_MAX);
        Track {
            caller: frames[..len].first().copied().unwrap_or(0),
            stack: self.debug.depot.add(&self.platform, &frames[..len]),
            cpu: self.platform.cpu() as u16,
            is_set: 1,
            tid: self.platform.tid(),
            time: self.platform.now_ms() as u32,
        }
    }
}

impl<P: Platform> SlabCache<P> {
    fn track_at(&self, object: *mut u8, which: Which) -> *mut Track {
        let second = if which == Which::Free { TRACK_BYTES } else { 0 };
        object
            .wrapping_add(self.layout.tracks as usize + second)
            .cast()
    }

    /// A track of an object; `None` without U, or if there was no such call.
    pub(crate) fn track(&self, object: *mut u8, which: Which) -> Option<Track> {
        if self.layout.tracks == 0 {
            return None;
        }
        // SAFETY: within the slot of a slab of this cache.
        let track = unsafe { self.track_at(object, which).read_unaligned() };
        (track.is_set == 1).then_some(track)
    }

    /// Stores a track; nothing without U.
    pub(crate) fn set_track(&self, object: *mut u8, which: Which, track: Track) {
        if self.layout.tracks != 0 {
            // SAFETY: as in `track`; the caller holds the list lock.
            unsafe { self.track_at(object, which).write_unaligned(track) };
        }
    }
}
