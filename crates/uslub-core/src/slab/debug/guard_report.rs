//! What is said about a guarded object.
//!
//! | seen by | what |
//! |---|---|
//! | a fault in a closed page between slots | out of bounds, of the nearer object in use |
//! | a fault in the page of a freed slot | use after free |
//! | any other fault in the pool | invalid access |
//! | the free | overwritten canary, double free, pointer to no object |
//!
//! A report has the kernel's parts: what and where, the stack of the finder, the object, the stacks
//! of its allocation and of its free. Then the process ends, or with `guard_recover=1` goes on: a
//! fault opens the page, a wrong free does nothing. Of each object only the first fault is
//! reported. Callers: `kmalloc::guard`, and the platform's fault handler. The latter may come at
//! any instruction that touches memory of the program, so nothing here takes a lock.

use core::fmt;

use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::guard::{Overwritten, Place, canary};
use crate::slab::debug::guard_slot::{FREED, IN_USE, Slot, Stack};

const LINE: &str = "==================================================================";

/// How a fault accessed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It read, or executed.
    Read,
    /// It wrote.
    Write,
}

impl Touch {
    fn name(self) -> &'static str {
        match self {
            Touch::Read => "read",
            Touch::Write => "write",
        }
    }
}

/// What was done to a guarded object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wrong<'a> {
    OutOfBounds(Touch),
    AfterFree(Touch),
    Access(Touch),
    Overwritten(Overwritten),
    /// A call got the address of a freed object.
    Freed(&'a str),
    /// A call got an address that is no object's.
    Pointer(&'a str),
}

impl fmt::Display for Wrong<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::OutOfBounds(touch) => write!(f, "out-of-bounds {}", touch.name()),
            Wrong::AfterFree(touch) => write!(f, "use-after-free {}", touch.name()),
            Wrong::Access(touch) => write!(f, "invalid {}", touch.name()),
            Wrong::Overwritten(_) => f.write_str("memory corruption"),
            Wrong::Freed("free of") => f.write_str("double free"),
            Wrong::Freed(call) => write!(f, "use after free: {call} a freed object"),
            Wrong::Pointer(call) => write!(f, "{call} a pointer to no object"),
        }
    }
}

/// Bytes of a canary: `.` for a byte as it should be.
struct Bytes(Overwritten);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overwritten {
            address,
            found,
            len,
        } = self.0;
        for (at, &byte) in (address..).zip(&found[..len]) {
            if byte == canary(at) {
                f.write_str(" .")?;
            } else {
                write!(f, " {byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Where an address lies relative to an object.
struct Where {
    address: usize,
    object: usize,
    size: usize,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.object + self.size;
        if self.address < self.object {
            write!(f, "{} bytes left of", self.object - self.address)
        } else if self.address < end {
            write!(f, "{} bytes into", self.address - self.object)
        } else {
            write!(f, "{} bytes right of", self.address - end)
        }
    }
}

impl<P: Platform> Base<P> {
    /// Reports a fault at an address of the pool, by code with these return addresses; the first
    /// is where it happened. Ends the process, or opens the page: then the access may be repeated.
    #[cold]
    #[inline(never)]
    pub fn guard_fault(&self, address: usize, touch: Touch, frames: &[usize]) {
        let guard = &self.debug.guard;
        let (wrong, index) = match guard.place(address) {
            Place::Slot(index) => match guard.slot(index).map(Slot::state) {
                // Another thread has opened it meanwhile.
                Some(IN_USE) => return guard.open(&self.platform, address),
                Some(FREED) => (Wrong::AfterFree(touch), Some(index)),
                _ => (Wrong::Access(touch), None),
            },
            Place::Between(index) => match self.nearer(address, index) {
                Some(slot) => (Wrong::OutOfBounds(touch), Some(slot)),
                None => (Wrong::Access(touch), None),
            },
        };
        let slot = index.and_then(|index| guard.slot(index));
        if slot.is_none_or(Slot::is_first_report) {
            let stack = Stack::of(&self.platform, frames);
            self.report_guarded(wrong, address, index, &stack);
        }
        guard.open(&self.platform, address);
    }

    /// The slot, of the two next to a closed page, whose object is in use and nearer.
    fn nearer(&self, address: usize, behind: usize) -> Option<usize> {
        let distance = |index: &usize| {
            let slot = self.debug.guard.slot(*index)?;
            let (start, end) = (slot.object(), slot.object() + slot.size());
            let far = if address < start {
                start - address
            } else {
                address - end
            };
            (slot.state() == IN_USE).then_some(far)
        };
        let both = [behind.checked_sub(1), Some(behind)].into_iter().flatten();
        both.filter_map(|index| distance(&index).map(|far| (far, index)))
            .min()
            .map(|(_, index)| index)
    }

    /// Reports misuse of the guarded object in a slot, or of the pool. Ends the process, unless
    /// `guard_recover=1`.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_guarded(
        &self,
        wrong: Wrong<'_>,
        address: usize,
        index: Option<usize>,
        stack: &Stack,
    ) {
        self.debug.guard.count_hit();
        self.debug.count_error();
        let slot = index.and_then(|index| Some((index, self.debug.guard.slot(index)?)));
        self.debug.while_reporting(|| {
            self.say_guard_head(wrong, address, slot, stack);
            if let Some((index, slot)) = slot {
                self.say_guarded(index, slot);
                let in_free = matches!(wrong, Wrong::Overwritten(_));
                if slot.state() == FREED && !in_free {
                    self.say_trace("freed", &slot.freed.get());
                }
            }
            self.say_guard_tail(stack);
        });
        if self.tunables().guard_recover == 0 {
            self.end_after_guard(wrong, address, slot.map(|(_, slot)| slot));
        }
    }

    #[cold]
    #[inline(never)]
    fn end_after_guard(&self, wrong: Wrong<'_>, address: usize, slot: Option<&Slot>) -> ! {
        let more = "guard_recover=1 reports and goes on";
        match slot.map(|slot| self.guarded_cache(slot)) {
            Some(name) => (self.platform).fatal(format_args!(
                "cache '{name}': {wrong} at {address:#x}; {more}"
            )),
            None => (self.platform).fatal(format_args!("{wrong} at {address:#x}; {more}")),
        }
    }

    /// As [`report_guarded`](Self::report_guarded), found by a call of this thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_guarded_here(
        &self,
        wrong: Wrong<'_>,
        address: usize,
        index: Option<usize>,
    ) {
        let stack = Stack::here(&self.platform);
        self.report_guarded(wrong, address, index, &stack);
    }

    pub(crate) fn guarded_cache(&self, slot: &Slot) -> &str {
        let cache = CacheId::from_raw(slot.cache()).and_then(|id| self.slabs_of(id));
        cache.map_or("<destroyed>", SlabCache::name)
    }

    fn say_guard_head(
        &self,
        wrong: Wrong<'_>,
        address: usize,
        slot: Option<(usize, &Slot)>,
        stack: &Stack,
    ) {
        self.say(format_args!("{LINE}"));
        match stack.frames().first() {
            Some(&at) => {
                let place = self.platform.place(at);
                self.say(format_args!("BUG: guard: {wrong} in {place}"));
            }
            None => self.say(format_args!("BUG: guard: {wrong}")),
        }
        self.say(format_args!(""));
        match (wrong, slot) {
            (Wrong::Overwritten(bytes), Some((index, _))) => {
                let address = bytes.address;
                self.say(format_args!(
                    "Overwritten bytes at {address:#x} [{} ] (around guard-#{index}):",
                    Bytes(bytes)
                ));
            }
            (_, Some((index, slot))) => {
                let (object, size) = (slot.object(), slot.size());
                let at = Where {
                    address,
                    object,
                    size,
                };
                self.say(format_args!("At {address:#x}, {at} guard-#{index}:"));
            }
            (_, None) => self.say(format_args!("At {address:#x}, near no object in use:")),
        }
        self.say_stack(stack);
    }

    fn say_stack(&self, stack: &Stack) {
        self.say_frames(stack.frames());
        self.say(format_args!(""));
    }

    /// The object of a slot, and who allocated it.
    fn say_guarded(&self, index: usize, slot: &Slot) {
        let (object, size, name) = (slot.object(), slot.size(), self.guarded_cache(slot));
        let last = object + size.max(1) - 1;
        self.say(format_args!(
            "guard-#{index}: {object:#x}-{last:#x}, size={size}, cache={name}"
        ));
        self.say(format_args!(""));
        self.say_trace("allocated", &slot.allocated.get());
    }

    fn say_trace(&self, verb: &str, stack: &Stack) {
        let Stack { tid, cpu, time, .. } = *stack;
        let age = self.platform.now_ms().saturating_sub(time);
        self.say(format_args!(
            "{verb} by thread {tid} on cpu {cpu}, {age} ms ago:"
        ));
        self.say_stack(stack);
    }

    fn say_guard_tail(&self, stack: &Stack) {
        let who = self.platform.identity();
        let (cpu, tid, comm) = (stack.cpu, stack.tid, who.comm());
        self.say(format_args!("CPU: {cpu} PID: {tid} Comm: {comm}"));
        let (rate, (guarded, _)) = (self.tunables().guard, self.debug.guard.counts());
        self.say(format_args!(
            "(guarded sampling: {rate} a second; {guarded} objects were guarded so far)"
        ));
        self.say(format_args!("{LINE}"));
    }
}
