//! Barn access: the barns that a CPU uses, their limits, and the cache lines of each transfer.
//!
//! A CPU uses the barn of its [group](crate::groups) first. If this one is empty, or too full, the
//! CPU uses the barns of the other groups of its node.
//!
//! - A full sheaf comes in: one load per cache line prefetches its addresses.
//! - An empty sheaf comes in: its cache lines are prefetched for writing.
//! - An empty sheaf goes out: its cache lines are [handed off](Platform::handoff_lines) to the CPU
//!   that fills it next.
//! - A full sheaf or whole slabs go out, and another CPU is the barn's consumer: the cache lines of
//!   their objects are [handed off](Platform::handoff_objects) to this CPU.
//!
//! Each access is recorded: a miss may raise the CPU's [sheaf capacity](crate::sheaf::capacity) and
//! the barn's limit. Callers: `replace`, `bulk`, `spill` and `whole_slab`.

use crate::args::Flags;
use crate::gfp::Gfp;
use crate::percpu::sheaf::Sheaf;
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::{HANDOFF_OBJECT_BYTES, HANDOFF_SHEAVES};
use crate::sheaf::barn::Barn;
use crate::sheaf::cache::SheafCache;
use crate::sheaf::spill::SPILL_INTO_BARN;
use crate::slab::base::Base;
use crate::slab::whole_slab::{Emptying, Whose};

impl<P: Platform> Base<P> {
    /// The number of the first barn of this CPU's node; `None` if the CPU uses no barns.
    #[inline(never)]
    fn first_barn(&self, cache: &SheafCache<P>) -> Option<usize> {
        if self.nr_nodes() == 1 {
            return Some(0);
        }
        let nid = self.nid();
        let has_one = cache.tuning.memoryless_barns == 1 || self.platform.node_has_memory(nid);
        has_one.then(|| nid * self.nr_groups())
    }

    /// The barn of this CPU's group, if the CPU uses barns.
    fn barn<'a>(&self, cache: &'a SheafCache<P>) -> Option<&'a Barn<P>> {
        let first = self.first_barn(cache)?;
        Some(cache.barn(first + self.group()))
    }

    /// The barns of this CPU's node, its group's first; none if the CPU uses no barns.
    fn barns<'a>(&self, cache: &'a SheafCache<P>) -> impl Iterator<Item = &'a Barn<P>> {
        let first = self.first_barn(cache);
        let (own, groups) = match first {
            Some(_) => (self.group(), self.nr_groups()),
            None => (0, 0),
        };
        // By exclusive or, groups with nothing meet in different barns: if groups 4 to 7 look for
        // what 0 to 3 have, each begins with another one.
        let others = (0..groups.next_power_of_two()).map(move |step| own ^ step);
        let present = others.filter(move |&group| group < groups);
        present.map(move |group| cache.barn(first.unwrap_or(0) + group))
    }

    /// Current limit of full sheaves in a barn of the cache.
    fn limit_of(cache: &SheafCache<P>, barn: &Barn<P>) -> usize {
        cache.max_full + barn.extra_capacity()
    }

    /// Current limit of empty sheaves: each full sheaf that leaves is replaced by an empty one.
    fn empties_of(cache: &SheafCache<P>, barn: &Barn<P>) -> usize {
        cache.max_empty + barn.extra_capacity()
    }

    /// Records a miss in all barns of this CPU's node, which may raise their limits: CPUs of
    /// another group may have found no room for what this CPU lacks.
    fn on_barn_miss(&self, cache: &SheafCache<P>) {
        if cache.max_full_grown > cache.max_full && !self.is_over_budget() {
            self.barns(cache)
                .for_each(|barn| barn.widen(cache.max_full, cache.max_full_grown));
        }
    }

    /// Takes a full sheaf from the barn, and stores `empty` there if there is room.
    #[inline(never)]
    pub(crate) fn barn_get_full(
        &self,
        cache: &SheafCache<P>,
        empty: &mut Option<Sheaf>,
        gfp: Gfp,
    ) -> Option<Sheaf> {
        if let Some(spilled) = self.barn_get_spilled(cache, gfp) {
            return Some(spilled);
        }
        let full = self.barns(cache).find_map(|barn| {
            if barn.nr_full() == 0 {
                return None;
            }
            empty.iter_mut().for_each(|empty| self.handoff_room(empty));
            let full = barn.exchange_empty(empty, Self::empties_of(cache, barn), gfp.may_spin())?;
            barn.record_consumer(self.platform.cpu());
            full.prefetch();
            Some(full)
        });
        if full.is_none() {
            self.on_barn_miss(cache);
        }
        let item = match full {
            Some(_) => StatItem::BarnGet,
            None => StatItem::BarnGetFail,
        };
        self.count(cache, item, 1);
        self.on_barn_access(cache, full.is_none());
        full
    }

    /// Takes the barn's sheaf of leftovers, if the cache has one there.
    pub(crate) fn barn_get_spilled(&self, cache: &SheafCache<P>, gfp: Gfp) -> Option<Sheaf> {
        if cache.tuning.sheaf_spill != SPILL_INTO_BARN {
            return None;
        }
        let spilled = self.barn(cache)?.get_spilled(gfp.may_spin())?;
        self.count(cache, StatItem::BarnGet, 1);
        Some(spilled)
    }

    /// Stores a sheaf of leftovers in the barn: a full one with the full ones. Gives the sheaf back
    /// if another one is there.
    #[inline(never)]
    pub(crate) fn barn_put_spilled(
        &self,
        cache: &SheafCache<P>,
        sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<(), Sheaf> {
        match self.barn(cache) {
            _ if sheaf.is_full() => self.barn_put(cache, sheaf, gfp),
            Some(barn) => barn.put_spilled(sheaf, gfp.may_spin()),
            None => Err(sheaf),
        }
    }

    /// Takes as many full sheaves from the barn as `objects` objects need, or as there are.
    pub(crate) fn barn_get_full_for(
        &self,
        cache: &SheafCache<P>,
        objects: usize,
        gfp: Gfp,
    ) -> SheafList {
        let wanted = objects.div_ceil(cache.capacity.max(1));
        let mut fulls = SheafList::new();
        for barn in self.barns(cache) {
            let more = barn.get_fulls(wanted - fulls.len(), gfp.may_spin());
            if !more.is_empty() {
                barn.record_consumer(self.platform.cpu());
                fulls.append(more);
            }
            if fulls.len() == wanted {
                break;
            }
        }
        let failed = fulls.len() < wanted;
        if failed {
            self.on_barn_miss(cache);
        }
        self.count(cache, StatItem::BarnGet, fulls.len());
        self.count(cache, StatItem::BarnGetFail, usize::from(failed));
        self.on_barn_access(cache, failed);
        fulls
    }

    /// Stores full and empty sheaves in the barn as far as there is room; the rest stays in the
    /// lists.
    pub(crate) fn barn_put_list(
        &self,
        cache: &SheafCache<P>,
        full: &mut SheafList,
        empty: &mut SheafList,
        gfp: Gfp,
    ) {
        let before = full.len();
        for barn in self.barns(cache) {
            if !Self::is_full(cache, barn) {
                let mut waiting = barn.nr_full();
                full.for_each(|objects| {
                    self.handoff(cache, barn, waiting, objects);
                    waiting += 1;
                });
                barn.put_fulls(full, Self::limit_of(cache, barn), gfp.may_spin());
            }
            barn.put_empties(empty, Self::empties_of(cache, barn), gfp.may_spin());
            if full.is_empty() {
                break;
            }
        }
        if !full.is_empty() {
            self.record_rejection(cache);
        }
        if before > 0 {
            self.count(cache, StatItem::BarnPut, before - full.len());
            self.count(cache, StatItem::BarnPutFail, full.len());
            self.on_barn_access(cache, !full.is_empty());
        }
    }

    /// Empty sheaves for up to `objects` objects, as many as the barns have room for when full:
    /// from the barn, then new ones.
    pub(crate) fn barn_room_for(
        &self,
        cache: &SheafCache<P>,
        objects: usize,
        gfp: Gfp,
    ) -> SheafList {
        let room_in = |barn: &Barn<P>| Self::limit_of(cache, barn).saturating_sub(barn.nr_full());
        let room = self.barns(cache).map(room_in).sum();
        let all = objects.div_ceil(cache.capacity.max(1));
        let wanted = all.min(room);
        if wanted < all {
            self.record_rejection(cache);
        }
        let mut empties = (self.barn(cache)).map_or(SheafList::new(), |barn| {
            barn.get_empties(wanted, gfp.may_spin())
        });
        while empties.len() < wanted
            && let Some(sheaf) = self.new_sheaf(cache, gfp)
        {
            empties.push(sheaf);
        }
        empties
    }

    /// Stores a full sheaf in the barn; gives it back if there is no room.
    pub(crate) fn barn_put(
        &self,
        cache: &SheafCache<P>,
        sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<(), Sheaf> {
        self.barn_put_by(cache, sheaf, |barn, sheaf| {
            barn.put_full(sheaf, Self::limit_of(cache, barn), gfp.may_spin())
        })
    }

    /// As [`barn_put`](Self::barn_put), and takes an empty sheaf if there is one.
    #[inline(never)]
    pub(crate) fn barn_replace_full(
        &self,
        cache: &SheafCache<P>,
        sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<Option<Sheaf>, Sheaf> {
        let mut empty = self.barn_put_by(cache, sheaf, |barn, sheaf| {
            barn.exchange_full(sheaf, Self::limit_of(cache, barn), gfp.may_spin())
        })?;
        empty.iter_mut().for_each(|empty| self.prefetch_room(empty));
        Ok(empty)
    }

    /// Prefetches the cache lines of an empty sheaf for writing. Another CPU may have read them
    /// last. The misses overlap here; later writes would take them one by one.
    pub(crate) fn prefetch_room(&self, empty: &mut Sheaf) {
        self.platform.prefetch_lines(empty.room());
    }

    /// Hands off the cache lines of an empty sheaf: writes to them, as the CPU that fills the sheaf
    /// next will. If another CPU filled it, this CPU has only read the lines, and a line comes
    /// faster from its last writer.
    pub(crate) fn handoff_room(&self, empty: &mut Sheaf) {
        self.platform.handoff_lines(empty.room());
    }

    fn barn_put_by<T>(
        &self,
        cache: &SheafCache<P>,
        sheaf: Sheaf,
        put: impl Fn(&Barn<P>, Sheaf) -> Result<T, Sheaf>,
    ) -> Result<T, Sheaf> {
        let mut result = Err(sheaf);
        for barn in self.barns(cache).filter(|barn| !Self::is_full(cache, barn)) {
            result = result.or_else(|sheaf| {
                self.handoff(cache, barn, barn.nr_full(), sheaf.objects());
                put(barn, sheaf)
            });
            if result.is_ok() {
                break;
            }
        }
        if result.is_err() {
            self.record_rejection(cache);
        }
        let item = match result {
            Ok(_) => StatItem::BarnPut,
            Err(_) => StatItem::BarnPutFail,
        };
        self.count(cache, item, 1);
        self.on_barn_access(cache, result.is_err());
        result
    }

    /// Hands off the objects' cache lines if they go to a barn with `waiting` full sheaves and
    /// another CPU is its consumer: writes to lines that the consumer will write to.
    fn handoff(&self, cache: &SheafCache<P>, barn: &Barn<P>, waiting: usize, objects: &[*mut u8]) {
        if self.is_handed_off(cache, barn, waiting) {
            // SAFETY: free objects of a sheaf that this thread owns, which no reader knows any
            // longer.
            unsafe { self.platform.handoff_objects(objects) };
        }
    }

    fn is_handed_off(&self, cache: &SheafCache<P>, barn: &Barn<P>, waiting: usize) -> bool {
        cache.size as usize <= HANDOFF_OBJECT_BYTES
            && waiting >= HANDOFF_SHEAVES
            && !cache.flags.contains(Flags::TYPESAFE_BY_RCU)
            && barn.is_emptied_elsewhere(self.platform.cpu())
    }

    /// How the whole slabs among `objects` objects are emptied: their lines are handed off by the
    /// same rule as for the barn.
    #[inline(never)]
    pub(crate) fn emptying(&self, cache: &SheafCache<P>, whose: Whose, objects: usize) -> Emptying {
        let waiting = objects / cache.capacity.max(1);
        let handed_off = self
            .barn(cache)
            .is_some_and(|barn| self.is_handed_off(cache, barn, waiting));
        Emptying { whose, handed_off }
    }

    /// Records this CPU as the barn's consumer.
    pub(crate) fn record_consumer(&self, cache: &SheafCache<P>) {
        if let Some(barn) = self.barn(cache) {
            barn.record_consumer(self.platform.cpu());
        }
    }

    /// Whether a barn has no room for a full sheaf; may be stale.
    fn is_full(cache: &SheafCache<P>, barn: &Barn<P>) -> bool {
        barn.nr_full() >= Self::limit_of(cache, barn)
    }

    /// Whether no barn has room for a full sheaf; may be stale.
    #[inline(never)]
    pub(crate) fn barns_are_full(&self, cache: &SheafCache<P>) -> bool {
        self.barns(cache).all(|barn| Self::is_full(cache, barn))
    }

    /// Records in this CPU's barn that a full sheaf found no room.
    fn record_rejection(&self, cache: &SheafCache<P>) {
        if let Some(barn) = self.barn(cache) {
            barn.record_rejection();
        }
    }

    /// Records a full sheaf that no barn has room for.
    #[inline(never)]
    pub(crate) fn on_full_barns(&self, cache: &SheafCache<P>) {
        self.record_rejection(cache);
        self.count(cache, StatItem::BarnPutFail, 1);
        self.on_barn_access(cache, true);
    }

    /// Takes an empty sheaf from the barn.
    pub(crate) fn barn_get_empty(&self, cache: &SheafCache<P>, gfp: Gfp) -> Option<Sheaf> {
        let mut empty = self.barn(cache)?.get_empty(gfp.may_spin())?;
        self.prefetch_room(&mut empty);
        Some(empty)
    }

    /// Stores an empty sheaf in the barn; gives it back if there is no room.
    pub(crate) fn barn_put_empty(
        &self,
        cache: &SheafCache<P>,
        mut sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<(), Sheaf> {
        self.handoff_room(&mut sheaf);
        match self.barn(cache) {
            Some(barn) => barn.put_empty(sheaf, Self::empties_of(cache, barn), gfp.may_spin()),
            None => Err(sheaf),
        }
    }
}
