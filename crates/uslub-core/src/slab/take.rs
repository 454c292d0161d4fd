//! Take: moves objects out of one slab that the caller owns.
//!
//! One compare-and-swap detaches the slab's whole freelist. Objects beyond the caller's room go
//! into a sheaf ([`Overflow`]). Otherwise a second compare-and-swap returns them (the *optimistic
//! return*), without a walk of the list, unless a free came in between.
//!
//! The iterator writes the addresses of fresh slots straight into the caller's array, without a
//! link. Slots that it does not reach stay fresh. A slab without an object in use starts over as
//! fresh, so its old links are never read. Callers: `refill`.

use core::ptr::null_mut;

use crate::gfp::Gfp;
use crate::misuse::{Misuse, Reason};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::detached::Detached;
use crate::slab::state::{Slab, State};

/// Where a refill may put objects that it takes beyond what its caller asked for.
pub(crate) trait Overflow<P: Platform> {
    /// Whether there is room for `n` objects, at least 1, all of them.
    fn has_room(&mut self, base: &Base<P>, n: usize) -> bool;

    /// The places of the next `n` objects, for which there [is room](Self::has_room).
    fn places(&mut self, n: usize) -> &mut [*mut u8];

    /// Says that `n` objects were written to their places.
    fn took(&mut self, n: usize);
}

/// A refill's request and its result so far. One record, since its functions call each other deeply
/// and callers may have little stack.
pub(crate) struct Refill<'a, P: Platform> {
    pub(crate) cache: &'a SlabCache<P>,
    pub(crate) out: &'a mut [*mut u8],
    /// Objects written to the start of `out` so far.
    pub(crate) filled: usize,
    /// Objects wanted at least; more are taken if they cost nothing extra.
    pub(crate) min: usize,
    pub(crate) gfp: Gfp,
    /// Where the rest of the last slab may go; back to the slab without it.
    pub(crate) overflow: Option<&'a mut dyn Overflow<P>>,
}

impl<'a, P: Platform> Refill<'a, P> {
    /// Requests at least `min` objects, and at most as many as `out` holds.
    pub(crate) fn new(
        cache: &'a SlabCache<P>,
        out: &'a mut [*mut u8],
        min: usize,
        gfp: Gfp,
        overflow: Option<&'a mut dyn Overflow<P>>,
    ) -> Self {
        Self {
            cache,
            out,
            filled: 0,
            min,
            gfp,
            overflow,
        }
    }

    /// Objects still missing to `min`.
    pub(crate) fn missing(&self) -> usize {
        self.min.saturating_sub(self.filled)
    }

    /// The part of `out` for the next objects.
    pub(crate) fn room(&mut self) -> &mut [*mut u8] {
        &mut self.out[self.filled..]
    }
}

/// The state of an isolated slab after a take.
#[derive(PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It has free slots and still belongs to the caller.
    Ours,
    /// It is full, or another thread has listed it.
    Gone,
}

/// The end of a detached freelist, beyond the caller's room.
struct Rest {
    /// The slab's state after the detach.
    left: State,
    head: *mut u8,
    /// Objects in the rest.
    count: usize,
}

/// What was detached from a slab.
struct Taken {
    old: State,
    new: State,
    /// Position of the first fresh slot.
    first: usize,
    /// Objects of the freelist.
    listed: usize,
    /// Fresh slots.
    fresh: usize,
    /// Objects that go to the overflow.
    spilled: usize,
}

impl<P: Platform> Base<P> {
    /// Takes objects out of a slab that we own: as many as the refill has room for, and the rest if
    /// it can be spilled.
    #[inline]
    pub(crate) fn take_from(&self, refill: &mut Refill<'_, P>, slab: &Slab) -> Ownership {
        let cache = refill.cache;
        let objects = cache.geometry.objects as usize;
        if cache.can_alloc_entire() && refill.room().len() >= objects && slab.state().inuse() == 0 {
            self.take_entire(cache, slab, &mut refill.room()[..objects]);
            refill.filled += objects;
            return Ownership::Gone;
        }
        let mut rest = Rest {
            left: State::without_list(0),
            head: null_mut(),
            count: 0,
        };
        let outcome = self.take_partial(refill, slab, &mut rest);
        if rest.count == 0 {
            return outcome;
        }
        // Not in `take_partial`: both functions need much stack.
        self.return_rest(cache, slab, &rest)
    }

    /// Takes all objects out of a slab that we own, with none in use: no thread can push, and its
    /// links are dropped.
    fn take_entire(&self, cache: &SlabCache<P>, slab: &Slab, out: &mut [*mut u8]) {
        slab.set_epoch(slab.epoch().wrapping_add(1));
        slab.set_position(out.len() as u16);
        slab.set_state(State::without_list(out.len() as u32));
        self.write_fresh(cache, slab, self.slab_base(slab), 0, out);
    }

    /// As [`take_from`](Self::take_from), for any slab; the caller returns `rest`.
    #[inline(never)]
    fn take_partial(&self, refill: &mut Refill<'_, P>, slab: &Slab, rest: &mut Rest) -> Ownership {
        let cache = refill.cache;
        let (out, overflow) = (&mut refill.out[refill.filled..], &mut refill.overflow);
        let taken = self.detach_free(cache, slab, out.len(), overflow);
        let (first, listed) = (taken.first, taken.listed);
        let (fresh, spilled) = (taken.fresh, taken.spilled);
        let base = self.slab_base(slab);
        // Without a spill all fresh objects are wanted. A free that came in since may have left the
        // list longer than the remaining room.
        let kept = if spilled > 0 { 0 } else { fresh };
        let from_list = listed.min(out.len() - kept);
        let fresh_out = fresh.min(out.len() - from_list);
        let count = from_list + fresh_out;
        let head = taken.old.head().filter(|_| listed > 0);
        let mut at = head.map_or(null_mut(), |o| base.wrapping_add(o));
        at = self.write_listed(cache, slab, base, at, &mut out[..from_list]);
        self.write_fresh(cache, slab, base, first, &mut out[from_list..count]);
        let left = listed - from_list;
        if let Some(overflow) = overflow.as_mut().filter(|_| spilled > 0) {
            let room = overflow.places(spilled);
            self.write_listed(cache, slab, base, at, &mut room[..left]);
            self.write_fresh(cache, slab, base, first + fresh_out, &mut room[left..]);
            overflow.took(spilled);
            self.count(cache, StatItem::SheafSpill, spilled);
        } else if left > 0 {
            if at.is_null() {
                self.corrupt(cache, base, Reason::ShortList);
            }
            *rest = Rest {
                left: taken.new,
                head: at,
                count: left,
            };
        }
        refill.filled += count;
        if taken.new.inuse() < cache.geometry.objects {
            Ownership::Ours
        } else {
            Ownership::Gone
        }
    }

    /// Detaches the freelist of a slab that we own, and as many fresh slots as there is room for:
    /// `room` objects, and the rest if it can be spilled.
    #[inline(always)]
    fn detach_free(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        room: usize,
        overflow: &mut Option<&mut dyn Overflow<P>>,
    ) -> Taken {
        let objects = cache.geometry.objects;
        let position = u32::from(slab.position());
        let mut old = slab.state();
        // Constructed objects stay constructed: such a slab does not start over.
        let starts_over = old.inuse() == 0
            && (cache.ctor.is_none() || position == 0)
            && cache.tuning.freelist_deferred == 1;
        if starts_over {
            // The old links become invalid.
            slab.set_epoch(slab.epoch().wrapping_add(1));
        }
        let first = if starts_over { 0 } else { position };
        let fresh_left = objects - first;
        let mut constructed = None;
        loop {
            let listed = objects - old.inuse() - fresh_left;
            let beyond = ((listed + fresh_left) as usize).saturating_sub(room);
            let spills =
                beyond > 0 && (overflow.as_mut()).is_some_and(|o| o.has_room(self, beyond));
            let spilled = if spills { beyond } else { 0 };
            let mut fresh = fresh_left.min(((room + spilled) as u32).saturating_sub(listed));
            if let Some(ctor) = cache.ctor {
                // Once: constructed objects are handed out even if more frees come in.
                fresh = *constructed
                    .get_or_insert_with(|| self.construct(cache, ctor, slab, first, fresh));
            }
            let new = State::without_list(old.inuse() + listed + fresh);
            // Before the state: the slab's next owner must see it.
            slab.set_position((first + fresh) as u16);
            let taken = Taken {
                old,
                new,
                first: first as usize,
                listed: listed as usize,
                fresh: fresh as usize,
                spilled,
            };
            if old.inuse() == 0 {
                // No thread holds an object of the slab, so none can push.
                slab.set_state(new);
                return taken;
            }
            match cache.compare_exchange_state(slab, old, new) {
                Ok(()) => return taken,
                Err(now) => {
                    self.count(cache, StatItem::CmpxchgDoubleFail, 1);
                    old = now;
                }
            }
        }
    }

    /// Writes the first objects of a detached freelist to an array; returns the next object.
    #[inline(always)]
    fn write_listed(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        base: *mut u8,
        mut at: *mut u8,
        out: &mut [*mut u8],
    ) -> *mut u8 {
        for slot in out {
            *slot = at;
            at = self.next_free(cache, slab, base, at);
        }
        at
    }

    /// The object after `object` in a detached freelist; wipes the link.
    fn next_free(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        base: *mut u8,
        object: *mut u8,
    ) -> *mut u8 {
        if object.is_null() {
            // The slab's address: there is no object.
            self.corrupt(cache, base, Reason::ShortList);
        }
        // SAFETY: a slot of the slab, free, and detached by us.
        let next = unsafe { cache.links_of(slab).take(object) };
        let offset = (next as usize).wrapping_sub(base as usize);
        if !next.is_null() && (offset >= cache.geometry.bytes() || !cache.is_slot(offset)) {
            self.corrupt(cache, object, Reason::Overwritten);
        }
        next
    }

    /// Returns the rest of a detached freelist.
    ///
    /// The return takes no list lock, and lists the slab afterwards. One rule makes this safe: the
    /// thread whose compare-and-swap makes a full slab partial lists the slab. Story, with a slab
    /// that the detach left full:
    ///
    /// 1. Refill A detaches the whole freelist. The slab is full and on no list.
    /// 2. Free F pushes an object under the list lock. F made the slab partial, so F lists it.
    /// 3. Refill B isolates the slab and takes F's object. The slab is full again; its word is the
    ///    word of step 1.
    /// 4. A's compare-and-swap succeeds, although B owned the slab in between. A made the slab
    ///    partial, so A lists it. B found no slot left, or its own compare-and-swap fails, so B
    ///    does not list it.
    ///
    /// If A comes between 2 and 3, its compare-and-swap fails. Its rest is then an ordinary free: F
    /// or B has the slab. A slab that the detach left partial (it has fresh slots) stays with its
    /// refill, since no free lists it. A's objects count as in use all the time. So no slab becomes
    /// empty, or is discarded, during a return.
    #[inline(never)]
    fn return_rest(&self, cache: &SlabCache<P>, slab: &Slab, rest: &Rest) -> Ownership {
        let Rest { left, head, count } = *rest;
        let base = self.slab_base(slab);
        let offset = head as usize - base as usize;
        let back = left.with(Some(offset), left.inuse() - count as u32);
        loop {
            match cache.compare_exchange_state(slab, left, back) {
                Ok(()) => return Ownership::Ours,
                Err(now) if now == left => {}
                Err(_) => break,
            }
        }
        // A free came in between: find the tail and push the rest in front of the slab's list.
        let mut tail = head;
        for _ in 1..count {
            // SAFETY: a slot of the slab, free, and detached by us.
            tail = unsafe { cache.links_of(slab).get(tail) };
            let offset = (tail as usize).wrapping_sub(base as usize);
            if offset >= cache.geometry.bytes() {
                self.corrupt(cache, tail, Reason::EarlyEnd);
            }
        }
        if left.inuse() == cache.geometry.objects {
            // The slab looked full, so the free has listed it.
            let detached = Detached {
                slab,
                head,
                tail,
                count,
            };
            self.slab_free(cache, detached, Gfp::KERNEL);
            return Ownership::Gone;
        }
        let mut old = slab.state();
        loop {
            // SAFETY: this thread owns the tail until the state is changed.
            unsafe {
                let next = old.head().map_or(null_mut(), |o| base.wrapping_add(o));
                cache.links_of(slab).set(tail, next);
            }
            match cache.compare_exchange_state(
                slab,
                old,
                old.with(Some(offset), old.inuse() - count as u32),
            ) {
                Ok(()) => return Ownership::Ours,
                Err(now) => old = now,
            }
        }
    }

    /// Ends the process: a free object's memory was overwritten.
    #[cold]
    #[inline(never)]
    pub(crate) fn corrupt(&self, cache: &SlabCache<P>, object: *mut u8, why: Reason) -> ! {
        Misuse::Object(Some(cache.name()), "corrupt object", object, why).fatal(&self.platform)
    }
}
