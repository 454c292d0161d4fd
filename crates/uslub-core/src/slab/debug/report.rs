//! The lines of a report, in the kernel's form.
//!
//! | report | lines |
//! |---|---|
//! | of an object | header, tracks, slab, object, dumps, stack of the finder |
//! | of a slab | header, slab, stack |
//! | of a range | one line that says which bytes; the object's report follows for the first one |
//! | repair | `FIX cache: what` |
//!
//! Each report and each repair counts as one error. The caller holds the list lock.

use core::fmt::{self, Arguments};

use crate::debug::DebugFlags;
use crate::platform::{PAGE_SIZE, Platform};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::depot::STACK_MAX;
use crate::slab::debug::track::{Track, Which};
use crate::slab::state::Slab;

const DOUBLE: &str =
    "=============================================================================";
const SINGLE: &str =
    "-----------------------------------------------------------------------------";

/// A line of a dump: up to 16 bytes.
struct Dump<'a>(&'a [u8]);

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x} ")?;
        }
        for _ in self.0.len()..16 {
            f.write_str("   ")?;
        }
        f.write_str(" ")?;
        for &byte in self.0 {
            let shown = if (0x20..0x7f).contains(&byte) {
                byte
            } else {
                b'.'
            };
            write!(f, "{}", shown as char)?;
        }
        Ok(())
    }
}

/// Bytes that were overwritten.
#[derive(Clone, Copy)]
pub(crate) struct Damage {
    pub(crate) what: &'static str,
    pub(crate) first: *mut u8,
    pub(crate) last: *mut u8,
    pub(crate) found: u8,
    pub(crate) expected: u8,
}

impl<P: Platform> Base<P> {
    pub(super) fn say(&self, line: Arguments<'_>) {
        self.platform.report(line);
    }

    /// A line for each return address.
    pub(super) fn say_frames(&self, frames: &[usize]) {
        for &frame in frames {
            self.say(format_args!(" {}", self.platform.place(frame)));
        }
    }

    /// Reports an object; counts one error.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_object(&self, cache: &SlabCache<P>, object: *mut u8, text: &str) {
        self.debug.while_reporting(|| {
            self.say_header(cache, format_args!("{text}"));
            self.say_object(cache, object);
        });
    }

    /// Reports damaged bytes; with the object around them if `object` is given.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_damage(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        object: Option<*mut u8>,
        damage: Damage,
    ) {
        let Damage {
            what,
            first,
            last,
            found,
            expected,
        } = damage;
        let offset = (first as usize).wrapping_sub(self.slab_base(slab) as usize);
        self.debug.while_reporting(|| {
            self.say(format_args!(
                "[{what} overwritten] {first:p}-{last:p} @offset={offset}. First byte {found:#x} \
                 instead of {expected:#x}"
            ));
            match object {
                Some(object) => {
                    self.say_header(cache, format_args!("Object corrupt"));
                    self.say_object(cache, object);
                }
                None => {
                    self.count_report(cache);
                }
            }
        });
    }

    /// Reports a slab; counts one error.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_slab(&self, cache: &SlabCache<P>, slab: &Slab, text: Arguments<'_>) {
        self.debug.while_reporting(|| {
            self.say_header(cache, text);
            self.say_slab(cache, slab);
            self.say_finder();
        });
    }

    /// Says what was repaired; counts one error.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_fix(&self, cache: &SlabCache<P>, what: Arguments<'_>) {
        self.count_report(cache);
        self.say(format_args!("FIX {}: {what}", cache.name()));
    }

    /// Says which allocation fails on purpose, and its stack; counts no error.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_failure(&self, name: &str, bytes: usize) {
        let call = self.debug.fail.calls();
        self.debug.while_reporting(|| {
            self.say(format_args!(
                "FAULT_INJECTION: allocation {call} fails: {bytes} bytes, {name}"
            ));
            self.say_finder();
        });
    }

    /// Counts a report of a cache's slab or object; returns how many reports there were of all.
    pub(crate) fn count_report(&self, cache: &SlabCache<P>) -> u32 {
        cache.count_report();
        self.debug.count_error()
    }

    fn say_header(&self, cache: &SlabCache<P>, text: Arguments<'_>) {
        let again = if self.count_report(cache) > 0 {
            ", reported before"
        } else {
            ""
        };
        let who = self.platform.identity();
        self.say(format_args!("{DOUBLE}"));
        let (name, pid, comm) = (cache.name(), who.pid, who.comm());
        self.say(format_args!(
            "BUG {name} (pid {pid}, {comm}{again}): {text}"
        ));
        self.say(format_args!("{SINGLE}"));
        self.say(format_args!(""));
    }

    /// Says who allocated and who freed an object.
    pub(crate) fn say_tracks(&self, cache: &SlabCache<P>, object: *mut u8) {
        for (which, verb) in [(Which::Alloc, "Allocated"), (Which::Free, "Freed")] {
            if let Some(track) = cache.track(object, which) {
                self.say_track(verb, track);
            }
        }
    }

    fn say_track(&self, verb: &str, track: Track) {
        let Track {
            caller, cpu, tid, ..
        } = track;
        let age = (self.platform.now_ms() as u32).wrapping_sub(track.time);
        let place = self.platform.place(caller);
        self.say(format_args!(
            "{verb} in {place} age={age} cpu={cpu} pid={tid}"
        ));
        let mut frames = [0; STACK_MAX];
        let len = self.debug.depot.get(track.stack, &mut frames);
        if len == 0 {
            self.say(format_args!("object allocation/free stack trace missing"));
        }
        self.say_frames(&frames[..len]);
    }

    fn say_slab(&self, cache: &SlabCache<P>, slab: &Slab) {
        let (state, head) = (slab.state(), self.debug_head(slab));
        let (objects, inuse) = (cache.geometry.objects, state.inuse());
        let at = core::ptr::from_ref(slab);
        let flags = match (state.frozen(), slab.partial()) {
            (true, _) => "frozen",
            (_, true) => "partial",
            _ => "full",
        };
        self.say(format_args!(
            "Slab {at:p} objects={objects} used={inuse} fp={head:p} flags={flags}"
        ));
    }

    /// The rest of an object's report: tracks, slab, object, dumps, stack.
    fn say_object(&self, cache: &SlabCache<P>, object: *mut u8) {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            return;
        };
        let slab = cache.slab_of(arena, page);
        let base = self.slab_base(slab);
        if !cache.is_debug_slot(base, object) {
            self.say_slab(cache, slab);
            self.say(format_args!("Invalid pointer {object:p}"));
            return self.say_finder();
        }
        self.say_tracks(cache, object);
        self.say_slab(cache, slab);
        let offset = object as usize - base as usize;
        // SAFETY: a slot of the slab; its bytes may be any.
        let link = unsafe { cache.links_of(slab).get(object) };
        self.say(format_args!(
            "Object {object:p} @offset={offset} fp={link:p}"
        ));
        self.say(format_args!(""));
        let layout = &cache.layout;
        let red = cache.debug.get().contains(DebugFlags::RED_ZONE);
        let (label, left) = match red {
            true => ("Redzone  ", layout.left as usize),
            false => ("Bytes b4 ", 16.min(offset)),
        };
        self.dump(label, object.wrapping_sub(left), left);
        self.dump_object(cache, object);
        if red {
            let (size, behind) = (layout.object, layout.inuse - layout.object);
            self.dump(label, object.wrapping_add(size as usize), behind as usize);
        }
        let end = layout.end as usize;
        self.dump("Padding  ", object.wrapping_add(end), layout.behind() - end);
        self.say_finder();
    }

    fn dump(&self, label: &str, start: *mut u8, bytes: usize) {
        // SAFETY: within the slab.
        let bytes = unsafe { core::slice::from_raw_parts(start, bytes) };
        for line in bytes.chunks(16) {
            self.say(format_args!("{label}{:p}: {}", line.as_ptr(), Dump(line)));
        }
    }

    /// Dumps an object's bytes.
    pub(crate) fn dump_object(&self, cache: &SlabCache<P>, object: *mut u8) {
        let bytes = (cache.layout.object as usize).min(PAGE_SIZE);
        self.dump("Object   ", object, bytes);
    }

    /// The stack of the thread that found something.
    pub(crate) fn say_finder(&self) {
        let who = self.platform.identity();
        let (cpu, pid, comm) = (self.platform.cpu(), self.platform.tid(), who.comm());
        self.say(format_args!("CPU: {cpu} PID: {pid} Comm: {comm}"));
        let mut frames = [0; STACK_MAX];
        let len = self.platform.callers(&mut frames).min(STACK_MAX);
        if len > 0 {
            self.say(format_args!("Call Trace:"));
        }
        self.say_frames(&frames[..len]);
    }
}
