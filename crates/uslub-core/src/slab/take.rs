//! Taking objects out of one slab that the caller owns.
//!
//! The slab's freelist is detached whole by one compare-and-swap. What the caller has no room for
//! goes into a sheaf ([`Overflow`]), or back by another compare-and-swap (the
//! *optimistic return*), without a walk, unless a free came in between.
//!
//! The iterator writes the addresses of fresh slots straight into the caller's array: no link is
//! written for them. The others stay fresh until somebody asks. A slab without an object in use
//! starts over as fresh, so its old links are never read.

use core::ptr::null_mut;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::slab::detached::Detached;
use crate::slab::state::{Slab, State};

/// Where a refill may put objects that it takes beyond what its caller asked for.
pub(crate) trait Overflow<P: Platform> {
    /// Whether there is room for `n` objects, at least 1, all of them.
    fn has_room(
        &mut self,
        allocator: &Allocator<P>,
        cache: &KmemCache<P>,
        n: usize,
        gfp: Gfp,
    ) -> bool;

    /// The places of the next `n` objects, for which there [is room](Self::has_room).
    fn places(&mut self, n: usize) -> &mut [*mut u8];

    /// Says that `n` objects were written to their places.
    fn took(&mut self, n: usize);
}

/// What a refill is asked for, and what it got so far. One record, as its functions call each other
/// deeply and callers may have little stack.
pub(crate) struct Refill<'a, P: Platform> {
    pub(crate) cache: &'a KmemCache<P>,
    pub(crate) out: &'a mut [*mut u8],
    /// Objects at the start of `out` so far.
    pub(crate) filled: usize,
    /// Objects that are wanted at least; more are taken where they are at no extra cost.
    pub(crate) min: usize,
    pub(crate) gfp: Gfp,
    /// Where the rest of the last slab may go; back to the slab without it.
    pub(crate) overflow: Option<&'a mut dyn Overflow<P>>,
}

impl<'a, P: Platform> Refill<'a, P> {
    /// Asks for `min` objects at least, as many as `out` holds at most.
    pub(crate) fn new(
        cache: &'a KmemCache<P>,
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

    /// Objects that are still wanted.
    pub(crate) fn missing(&self) -> usize {
        self.min.saturating_sub(self.filled)
    }

    /// Where the next objects go.
    pub(crate) fn room(&mut self) -> &mut [*mut u8] {
        &mut self.out[self.filled..]
    }
}

/// What became of an isolated slab.
#[derive(PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It still has free slots and is still ours.
    Ours,
    /// It is full, or somebody else has listed it.
    Gone,
}

/// The end of a detached freelist that its caller has no room for.
struct Rest {
    /// The slab's state since the list was detached.
    left: State,
    head: *mut u8,
    /// Objects in it.
    count: usize,
}

impl Rest {
    const NONE: Self = Self {
        left: State::without_list(0),
        head: null_mut(),
        count: 0,
    };
}

impl<P: Platform> Allocator<P> {
    /// Takes as many objects as the refill has room for out of a slab that we own, and the rest of
    /// them if it can be spilled.
    #[inline]
    pub(crate) fn take_from(&self, refill: &mut Refill<'_, P>, slab: &Slab) -> Outcome {
        let cache = refill.cache;
        let objects = cache.oo.objects as usize;
        if cache.leaves_whole() && refill.room().len() >= objects && slab.state().inuse() == 0 {
            self.take_whole(cache, slab, &mut refill.room()[..objects]);
            refill.filled += objects;
            return Outcome::Gone;
        }
        let mut rest = Rest::NONE;
        let outcome = self.take_some(refill, slab, &mut rest);
        if rest.count == 0 {
            return outcome;
        }
        // Not in `take_some`, as both take stack.
        self.return_rest(cache, slab, &rest)
    }

    /// Takes all objects out of a slab that we own, none of which is in use: nobody can push, and
    /// its links, if it has any, are forgotten.
    fn take_whole(&self, cache: &KmemCache<P>, slab: &Slab, out: &mut [*mut u8]) {
        slab.set_epoch(slab.epoch().wrapping_add(1));
        slab.set_position(out.len() as u16);
        slab.set_state(State::without_list(out.len() as u32));
        self.emit(cache, slab, self.slab_base(slab), 0, out);
    }

    /// As [`take_from`](Self::take_from), of any slab; the caller gives `rest` back.
    #[inline(never)]
    fn take_some(&self, refill: &mut Refill<'_, P>, slab: &Slab, rest: &mut Rest) -> Outcome {
        let (cache, gfp) = (refill.cache, refill.gfp);
        let (out, overflow) = (&mut refill.out[refill.filled..], &mut refill.overflow);
        let objects = cache.oo.objects;
        let position = u32::from(slab.position());
        let mut old = slab.state();
        // Constructed objects stay what they are: such a slab does not start over.
        let starts_over = old.inuse() == 0
            && (cache.ctor.is_none() || position == 0)
            && cache.tuning.freelist_deferred == 1;
        if starts_over {
            // Its old links are forgotten.
            slab.set_epoch(slab.epoch().wrapping_add(1));
        }
        let first = if starts_over { 0 } else { position };
        let fresh_left = objects - first;
        let mut constructed = None;
        let (listed, fresh, spilled, new) = loop {
            let listed = objects - old.inuse() - fresh_left;
            let beyond = ((listed + fresh_left) as usize).saturating_sub(out.len());
            let spills = beyond > 0
                && (overflow.as_mut()).is_some_and(|o| o.has_room(self, cache, beyond, gfp));
            let spilled = if spills { beyond } else { 0 };
            let room = (out.len() + spilled) as u32;
            let mut fresh = fresh_left.min(room.saturating_sub(listed));
            if let Some(ctor) = cache.ctor {
                // Once: what is constructed leaves, however many frees come in.
                fresh = *constructed
                    .get_or_insert_with(|| self.construct(cache, ctor, slab, first, fresh));
            }
            let new = State::without_list(old.inuse() + listed + fresh);
            // Before the state: whoever owns the slab next must see it.
            slab.set_position((first + fresh) as u16);
            if old.inuse() == 0 {
                // Nobody holds an object of it, so nobody can push.
                slab.set_state(new);
                break (listed as usize, fresh as usize, spilled, new);
            }
            match cache.change(slab, old, new) {
                Ok(()) => break (listed as usize, fresh as usize, spilled, new),
                Err(now) => {
                    self.count(cache, StatItem::CmpxchgDoubleFail, 1);
                    old = now;
                }
            }
        };
        let base = self.slab_base(slab);
        // Without a spill all fresh objects are wanted, and a free that came in since may have
        // brought more than that leaves room for.
        let kept = if spilled > 0 { 0 } else { fresh };
        let from_list = listed.min(out.len() - kept);
        let fresh_out = fresh.min(out.len() - from_list);
        let mut at = old
            .head()
            .filter(|_| listed > 0)
            .map_or(null_mut(), |o| base.wrapping_add(o));
        for slot in &mut out[..from_list] {
            *slot = at;
            at = self.next_free(cache, slab, base, at);
        }
        let first = first as usize;
        let taken = from_list + fresh_out;
        self.emit(cache, slab, base, first, &mut out[from_list..taken]);
        let outcome = if new.inuse() < objects {
            Outcome::Ours
        } else {
            Outcome::Gone
        };
        let left = listed - from_list;
        if let Some(overflow) = overflow.as_mut().filter(|_| spilled > 0) {
            let room = overflow.places(spilled);
            for slot in &mut room[..left] {
                *slot = at;
                at = self.next_free(cache, slab, base, at);
            }
            self.emit(cache, slab, base, first + fresh_out, &mut room[left..]);
            overflow.took(spilled);
            self.count(cache, StatItem::SheafSpill, spilled);
        } else if left > 0 {
            if at.is_null() {
                self.list_is_short(cache, at);
            }
            *rest = Rest {
                left: new,
                head: at,
                count: left,
            };
        }
        refill.filled += taken;
        outcome
    }

    /// The object behind `object` in a detached freelist, whose link is wiped.
    fn next_free(
        &self,
        cache: &KmemCache<P>,
        slab: &Slab,
        base: *mut u8,
        object: *mut u8,
    ) -> *mut u8 {
        if object.is_null() {
            self.list_is_short(cache, object);
        }
        // SAFETY: a slot of the slab, free, and detached by us.
        let next = unsafe { cache.links_of(slab).take(object) };
        let offset = (next as usize).wrapping_sub(base as usize);
        if !next.is_null() && (offset >= cache.oo.bytes() || !cache.is_slot(offset)) {
            self.corrupt(
                cache,
                object,
                "the link inside this free object was overwritten",
            );
        }
        next
    }

    #[cold]
    #[inline(never)]
    fn list_is_short(&self, cache: &KmemCache<P>, object: *mut u8) -> ! {
        let why = "its slab's freelist is shorter than its counter says";
        self.corrupt(cache, object, why)
    }

    /// Puts the rest of a detached freelist back.
    ///
    /// This takes no list lock, and the slab is listed afterwards. It is safe, as one rule says who
    /// lists a slab: who makes a full slab partial, by the compare-and-swap that does so. Story,
    /// with a slab that the detach left full:
    ///
    /// 1. Refill A detaches the whole freelist. The slab is full and on no list.
    /// 2. Free F pushes an object under the list lock. It made the slab partial, so it lists it.
    /// 3. Refill B isolates the slab and takes F's object. The slab is full again: its word is that
    ///    of step 1.
    /// 4. A's compare-and-swap succeeds, though the slab was another's in between. A made the slab
    ///    partial: it lists it. B found no slot left, or fails at its own compare-and-swap, and so
    ///    does not.
    ///
    /// Had A come between 2 and 3, its compare-and-swap would fail, and its rest be a free like any
    /// other: F or B has the slab. A slab that the detach left partial (slots of it are fresh)
    /// stays with its refill, as no free lists it. What A holds counts as in use all the time. So
    /// no slab empties, or is discarded, under a return.
    #[inline(never)]
    fn return_rest(&self, cache: &KmemCache<P>, slab: &Slab, rest: &Rest) -> Outcome {
        let Rest { left, head, count } = *rest;
        let base = self.slab_base(slab);
        let offset = head as usize - base as usize;
        let back = left.with(Some(offset), left.inuse() - count as u32);
        loop {
            match cache.change(slab, left, back) {
                Ok(()) => return Outcome::Ours,
                Err(now) if now == left => {}
                Err(_) => break,
            }
        }
        // A free came in between: find the tail and push the rest behind its list.
        let mut tail = head;
        for _ in 1..count {
            // SAFETY: a slot of the slab, free, and detached by us.
            tail = unsafe { cache.links_of(slab).get(tail) };
            let offset = (tail as usize).wrapping_sub(base as usize);
            if offset >= cache.oo.bytes() {
                self.corrupt(cache, tail, "a freelist ends before its count");
            }
        }
        if left.inuse() == cache.oo.objects {
            // It looked full, so that free has listed it.
            let detached = Detached {
                slab,
                head,
                tail,
                count,
            };
            self.slab_free(cache, detached, Gfp::KERNEL);
            return Outcome::Gone;
        }
        let mut old = slab.state();
        loop {
            // SAFETY: the tail is ours until the state says otherwise.
            unsafe {
                let next = old.head().map_or(null_mut(), |o| base.wrapping_add(o));
                cache.links_of(slab).set(tail, next);
            }
            match cache.change(
                slab,
                old,
                old.with(Some(offset), old.inuse() - count as u32),
            ) {
                Ok(()) => return Outcome::Ours,
                Err(now) => old = now,
            }
        }
    }

    /// Ends the process: the memory of a free object was written to.
    #[cold]
    #[inline(never)]
    pub(crate) fn corrupt(&self, cache: &KmemCache<P>, object: *mut u8, why: &str) -> ! {
        self.platform.fatal(format_args!(
            "cache '{}': object {object:p} is corrupt: {why}",
            cache.name()
        ))
    }
}
