//! Checks of a slab and of an object, with repairs.
//!
//! | check | letters | bytes |
//! |---|---|---|
//! | slab counters, frozen | F | |
//! | tail of the slab | P | 0x5a |
//! | red zones | Z | 0xbb free, 0xcc in use |
//! | gap behind the object | P without Z | 0x5a |
//! | free object | P | 0x6b, last 0xa5 |
//! | padding | P | 0x5a |
//! | link | F | null or a slot |
//!
//! Wrong bytes are reported and restored, so the same damage is reported once. The caller holds the
//! list lock.

use crate::debug::{DebugFlags, POISON_END, POISON_FREE, POISON_INUSE, RED_ACTIVE, RED_INACTIVE};
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::report::Damage;
use crate::slab::state::Slab;

/// Whether an object is free or in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Free,
    InUse,
}

impl Use {
    /// The byte of its red zones.
    pub(crate) fn red(self) -> u8 {
        match self {
            Use::Free => RED_INACTIVE,
            Use::InUse => RED_ACTIVE,
        }
    }
}

/// A part of an object: what it is called, where it lies, and the byte that it must hold.
struct Part(&'static str, *mut u8, usize, u8);

impl<P: Platform> SlabCache<P> {
    /// Whether an object of a slab that begins at `base` begins at `object`.
    pub(crate) fn is_debug_slot(&self, base: *mut u8, object: *mut u8) -> bool {
        let first = base as usize + self.layout.left as usize;
        let offset = (object as usize).wrapping_sub(first);
        offset < self.geometry.bytes() && self.is_slot(offset)
    }

    /// The object of slot `index` in a slab that begins at `base`.
    pub(crate) fn debug_object(&self, base: *mut u8, index: usize) -> *mut u8 {
        base.wrapping_add(index * self.size as usize + self.layout.left as usize)
    }

    /// The size that was asked for; the whole object's if it is not kept.
    pub(crate) fn asked_for(&self, object: *mut u8) -> usize {
        let layout = &self.layout;
        if layout.asked == 0 {
            return layout.object as usize;
        }
        let place = object.wrapping_add(layout.asked as usize).cast::<usize>();
        // SAFETY: within the slot.
        unsafe { place.read_unaligned() }.min(layout.object as usize)
    }

    /// Stores the size that was asked for; nothing if it is not kept.
    pub(crate) fn set_asked_for(&self, object: *mut u8, bytes: usize) {
        if self.layout.asked != 0 {
            let place = object
                .wrapping_add(self.layout.asked as usize)
                .cast::<usize>();
            // SAFETY: within the slot.
            unsafe { place.write_unaligned(bytes) };
        }
    }
}

impl<P: Platform> Base<P> {
    /// Checks a slab's counters and its tail; false if the slab must not be used.
    pub(crate) fn check_slab(&self, cache: &SlabCache<P>, slab: &Slab) -> bool {
        let (state, objects) = (slab.state(), cache.geometry.objects);
        let most = (cache.geometry.bytes() / cache.size as usize) as u32;
        if objects > most {
            self.report_slab(cache, slab, format_args!("objects {objects} > max {most}"));
            return false;
        }
        if state.inuse() > objects {
            let inuse = state.inuse();
            self.report_slab(cache, slab, format_args!("inuse {inuse} > max {objects}"));
            return false;
        }
        if state.frozen() {
            let text = format_args!("Slab disabled since a former check failed");
            self.report_slab(cache, slab, text);
            return false;
        }
        self.check_tail(cache, slab);
        true
    }

    /// Checks the bytes behind the last object of a slab.
    fn check_tail(&self, cache: &SlabCache<P>, slab: &Slab) {
        if !cache.debug.get().contains(DebugFlags::POISON) {
            return;
        }
        let used = cache.geometry.objects as usize * cache.size as usize;
        let (start, bytes) = (
            self.slab_base(slab).wrapping_add(used),
            cache.geometry.bytes() - used,
        );
        let Some((first, last)) = wrong_bytes(start, bytes, POISON_INUSE) else {
            return;
        };
        // SAFETY: within the slab.
        let found = unsafe { first.read() };
        let offset = first as usize - self.slab_base(slab) as usize;
        self.report_slab(
            cache,
            slab,
            format_args!(
                "Padding overwritten. {first:p}-{last:p} @offset={offset}, found {found:#x}"
            ),
        );
        self.restore(cache, "slab padding", first, last, POISON_INUSE);
    }

    /// Checks the bytes of one object, and its link; false if something was wrong. All wrong parts
    /// are reported, the first one with the whole object.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_object(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        object: *mut u8,
        how: Use,
    ) -> bool {
        let flags = cache.debug.get();
        let layout = &cache.layout;
        let (size, inuse) = (layout.object as usize, layout.inuse as usize);
        let (end, left) = (layout.end as usize, layout.left as usize);
        let mut printed = false;
        let mut check = |part: Part| {
            printed |= !self.check_part(cache, slab, object, part, printed);
        };
        let poison = flags.contains(DebugFlags::POISON);
        if flags.contains(DebugFlags::RED_ZONE) {
            check(Part(
                "Left Redzone",
                object.wrapping_sub(left),
                left,
                how.red(),
            ));
            let right = object.wrapping_add(size);
            check(Part("Right Redzone", right, inuse - size, how.red()));
            let asked = cache.asked_for(object);
            if how == Use::InUse && asked < size {
                let behind = object.wrapping_add(asked);
                check(Part("kmalloc Redzone", behind, size - asked, RED_ACTIVE));
            }
        } else if poison {
            let gap = object.wrapping_add(size);
            check(Part("Alignment padding", gap, inuse - size, POISON_INUSE));
        }
        if layout.poisons && poison && how == Use::Free {
            check(Part("Poison", object, size - 1, POISON_FREE));
            check(Part(
                "End Poison",
                object.wrapping_add(size - 1),
                1,
                POISON_END,
            ));
        }
        if poison {
            let padding = object.wrapping_add(end);
            check(Part(
                "Object padding",
                padding,
                layout.behind() - end,
                POISON_INUSE,
            ));
        }
        let outside = layout.link >= layout.inuse;
        if flags.contains(DebugFlags::CONSISTENCY_CHECKS) && (outside || how == Use::Free) {
            printed |= !self.check_link(cache, slab, object);
        }
        !printed
    }

    /// Checks that an object's link is null or leads to a slot of its slab; repairs it.
    fn check_link(&self, cache: &SlabCache<P>, slab: &Slab, object: *mut u8) -> bool {
        let links = cache.links_of(slab);
        // SAFETY: a slot of the slab; its bytes may be any.
        let next = unsafe { links.get(object) };
        if next.is_null() || cache.is_debug_slot(self.slab_base(slab), next) {
            return true;
        }
        self.report_object(cache, object, "Freepointer corrupt");
        // SAFETY: a slot of the slab, under the list lock.
        unsafe { links.set(object, core::ptr::null_mut()) };
        false
    }

    /// Checks a part of an object, and restores it. With `quiet`, only its own line is printed.
    fn check_part(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        object: *mut u8,
        part: Part,
        quiet: bool,
    ) -> bool {
        let Part(what, start, bytes, expected) = part;
        let Some((first, last)) = wrong_bytes(start, bytes, expected) else {
            return true;
        };
        // SAFETY: within the slab.
        let found = unsafe { first.read() };
        let damage = Damage {
            what,
            first,
            last,
            found,
            expected,
        };
        self.report_damage(cache, slab, (!quiet).then_some(object), damage);
        self.restore(cache, what, first, last, expected);
        false
    }

    /// Writes the byte that a range must hold.
    fn restore(&self, cache: &SlabCache<P>, what: &str, first: *mut u8, last: *mut u8, byte: u8) {
        self.report_fix(
            cache,
            format_args!("Restoring {what} {first:p}-{last:p}={byte:#x}"),
        );
        // SAFETY: within the slab, and nobody's data.
        unsafe { first.write_bytes(byte, last as usize - first as usize + 1) };
    }
}

/// The first and the last byte of a range that differ from `byte`.
fn wrong_bytes(start: *mut u8, bytes: usize, byte: u8) -> Option<(*mut u8, *mut u8)> {
    // SAFETY: callers pass ranges of a slab of theirs.
    let range = unsafe { core::slice::from_raw_parts(start, bytes) };
    let first = range.iter().position(|&b| b != byte)?;
    let last = range.iter().rposition(|&b| b != byte)?;
    Some((start.wrapping_add(first), start.wrapping_add(last)))
}
