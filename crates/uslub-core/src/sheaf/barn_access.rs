//! Visits to a barn: which one a CPU uses, how much it holds, and what goes to and fro.
//!
//! | what goes | what is done to it on the way |
//! |---|---|
//! | a full sheaf comes, for single objects | all lines of its addresses are read at once |
//! | an empty sheaf comes | all of its lines are asked for at once, to write to |
//! | an empty sheaf goes | its lines are [offered](Platform::offer_array) to who fills it |
//! | a full sheaf goes, or many whole slabs do, and another CPU takes such out | the lines of their objects are [offered](Platform::offer) to that CPU |
//!
//! Each visit is counted, and says whether the CPU [wants larger sheaves](crate::sheaf::capacity)
//! and the barn more of them.

use crate::args::Flags;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::sheaf::{Sheaf, SheafList};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::sheaf::barn::Barn;

/// Bytes of an object, at most, that is [offered](Platform::offer): what is gained with one line of
/// an object is little beside four.
const OFFERED: usize = 64;
/// Full sheaves that a barn then has already: what is taken out of it at once is worth less than it
/// costs.
const WAITING: usize = 4;

impl<P: Platform> Allocator<P> {
    /// The barn that this CPU uses, if it has one.
    fn barn<'a>(&self, cache: &'a KmemCache<P>) -> Option<&'a Barn<P>> {
        let nid = self.nid();
        let has_one = self.nr_nodes() == 1
            || cache.tuning.memoryless_barns == 1
            || self.platform.node_has_memory(nid);
        has_one.then(|| cache.barn(nid))
    }

    /// Full sheaves that a barn of the cache holds now.
    fn limit_of(cache: &KmemCache<P>, barn: &Barn<P>) -> usize {
        cache.max_full + barn.more()
    }

    /// Empty sheaves that a barn of the cache holds now: as full sheaves come and go, so do they.
    fn empties_of(cache: &KmemCache<P>, barn: &Barn<P>) -> usize {
        cache.max_empty + barn.more()
    }

    /// A barn of the cache had too few full sheaves.
    fn note_missed(&self, cache: &KmemCache<P>, barn: &Barn<P>) {
        if cache.max_full_grown > cache.max_full && !self.is_over_budget() {
            barn.widen(cache.max_full, cache.max_full_grown);
        }
    }

    /// Takes a full sheaf out of the barn, and leaves an empty one there if there is room.
    pub(crate) fn barn_get(
        &self,
        cache: &KmemCache<P>,
        empty: &mut Option<Sheaf>,
        gfp: Gfp,
    ) -> Option<Sheaf> {
        let full = self.barn(cache).and_then(|barn| {
            if barn.nr_full() > 0 {
                empty.iter_mut().for_each(|empty| self.offer_room(empty));
            }
            let full = barn.exchange_empty(empty, Self::empties_of(cache, barn), gfp.may_spin());
            match &full {
                Some(full) => {
                    barn.note_taker(self.platform.cpu());
                    full.fetch();
                }
                None => self.note_missed(cache, barn),
            }
            full
        });
        let item = match full {
            Some(_) => StatItem::BarnGet,
            None => StatItem::BarnGetFail,
        };
        self.count(cache, item, 1);
        self.note_barn(cache, full.is_none());
        full
    }

    /// Takes as many full sheaves out of the barn as `objects` objects need, as far as there are.
    pub(crate) fn barn_get_for(&self, cache: &KmemCache<P>, objects: usize, gfp: Gfp) -> SheafList {
        let (fulls, failed) = self.barn(cache).map_or((SheafList::new(), true), |barn| {
            let wanted = objects.div_ceil(cache.capacity.max(1));
            let fulls = barn.get_fulls(wanted, gfp.may_spin());
            if !fulls.is_empty() {
                barn.note_taker(self.platform.cpu());
            }
            let failed = fulls.len() < wanted;
            if failed {
                self.note_missed(cache, barn);
            }
            (fulls, failed)
        });
        self.count(cache, StatItem::BarnGet, fulls.len());
        self.count(cache, StatItem::BarnGetFail, usize::from(failed));
        self.note_barn(cache, failed);
        fulls
    }

    /// Stores sheaves of a list in the barn as far as there is room, those `full` and others apart;
    /// the rest stays in the lists.
    pub(crate) fn barn_put_all(
        &self,
        cache: &KmemCache<P>,
        full: &mut SheafList,
        empty: &mut SheafList,
        gfp: Gfp,
    ) {
        let before = full.len();
        if let Some(barn) = self.barn(cache) {
            let mut waiting = barn.nr_full();
            full.for_each(|objects| {
                self.offer(cache, barn, waiting, objects);
                waiting += 1;
            });
            barn.put_fulls(full, Self::limit_of(cache, barn), gfp.may_spin());
            barn.put_empties(empty, Self::empties_of(cache, barn), gfp.may_spin());
            if !full.is_empty() {
                barn.note_refused();
            }
        }
        if before > 0 {
            self.count(cache, StatItem::BarnPut, before - full.len());
            self.count(cache, StatItem::BarnPutFail, full.len());
            self.note_barn(cache, !full.is_empty());
        }
    }

    /// Empty sheaves for as many of `objects` objects as the barn has room for full ones: from the
    /// barn, and new ones.
    pub(crate) fn barn_room_for(
        &self,
        cache: &KmemCache<P>,
        objects: usize,
        gfp: Gfp,
    ) -> SheafList {
        let Some(barn) = self.barn(cache) else {
            return SheafList::new();
        };
        let room = Self::limit_of(cache, barn).saturating_sub(barn.nr_full());
        let all = objects.div_ceil(cache.capacity.max(1));
        let wanted = all.min(room);
        if wanted < all {
            barn.note_refused();
        }
        let mut empties = barn.get_empties(wanted, gfp.may_spin());
        while empties.len() < wanted
            && let Some(sheaf) = self.new_sheaf(cache, gfp)
        {
            empties.push(sheaf);
        }
        empties
    }

    /// Stores a full sheaf in the barn.
    ///
    /// # Errors
    ///
    /// The sheaf, when there is no room.
    pub(crate) fn barn_put(
        &self,
        cache: &KmemCache<P>,
        sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<(), Sheaf> {
        self.barn_put_by(cache, sheaf, |barn, sheaf| {
            barn.put_full(sheaf, Self::limit_of(cache, barn), gfp.may_spin())
        })
    }

    /// Stores a full sheaf in the barn, and takes an empty one out if there is one.
    ///
    /// # Errors
    ///
    /// The sheaf, when there is no room.
    #[inline(never)]
    pub(crate) fn barn_exchange(
        &self,
        cache: &KmemCache<P>,
        sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<Option<Sheaf>, Sheaf> {
        let mut empty = self.barn_put_by(cache, sheaf, |barn, sheaf| {
            barn.exchange_full(sheaf, Self::limit_of(cache, barn), gfp.may_spin())
        })?;
        empty.iter_mut().for_each(|empty| self.fetch_room(empty));
        Ok(empty)
    }

    /// Asks for the lines of an empty sheaf from the barn, which another CPU may have read last:
    /// all of them come at once then, not one by one as they are written.
    pub(crate) fn fetch_room(&self, empty: &mut Sheaf) {
        self.platform.fetch(empty.room());
    }

    /// An empty sheaf goes to the barn: writes to its lines, as who fills it next will. If another
    /// CPU had filled it, this one has only read them, and such lines are had more slowly.
    pub(crate) fn offer_room(&self, empty: &mut Sheaf) {
        self.platform.offer_array(empty.room());
    }

    fn barn_put_by<T>(
        &self,
        cache: &KmemCache<P>,
        sheaf: Sheaf,
        put: impl FnOnce(&Barn<P>, Sheaf) -> Result<T, Sheaf>,
    ) -> Result<T, Sheaf> {
        let put = match self.barn(cache) {
            Some(barn) => {
                self.offer(cache, barn, barn.nr_full(), sheaf.objects());
                put(barn, sheaf).inspect_err(|_| barn.note_refused())
            }
            None => Err(sheaf),
        };
        let item = match put {
            Ok(_) => StatItem::BarnPut,
            Err(_) => StatItem::BarnPutFail,
        };
        self.count(cache, item, 1);
        self.note_barn(cache, put.is_err());
        put
    }

    /// Objects go to a barn, where `waiting` full sheaves are: if another CPU takes them out of it,
    /// writes to their lines, which it will write to.
    fn offer(&self, cache: &KmemCache<P>, barn: &Barn<P>, waiting: usize, objects: &[*mut u8]) {
        if self.is_offered(cache, barn, waiting) {
            // SAFETY: free objects of a sheaf in our hands, and no reader knows them still.
            unsafe { self.platform.offer(objects) };
        }
    }

    fn is_offered(&self, cache: &KmemCache<P>, barn: &Barn<P>, waiting: usize) -> bool {
        cache.size as usize <= OFFERED
            && waiting >= WAITING
            && !cache.flags.contains(Flags::TYPESAFE_BY_RCU)
            && barn.is_emptied_elsewhere(self.platform.cpu())
    }

    /// Whether so many objects that go to their node in whole slabs are offered, as those on their
    /// way to the barn are.
    pub(crate) fn are_slabs_offered(&self, cache: &KmemCache<P>, objects: usize) -> bool {
        let waiting = objects / cache.capacity.max(1);
        self.barn(cache)
            .is_some_and(|barn| self.is_offered(cache, barn, waiting))
    }

    /// This CPU takes what others leave behind.
    pub(crate) fn note_taker(&self, cache: &KmemCache<P>) {
        if let Some(barn) = self.barn(cache) {
            barn.note_taker(self.platform.cpu());
        }
    }

    /// Whether the barn has no room for a full sheaf, at a glance.
    pub(crate) fn barn_is_full(&self, cache: &KmemCache<P>) -> bool {
        self.barn(cache)
            .is_none_or(|barn| barn.nr_full() >= Self::limit_of(cache, barn))
    }

    /// A full sheaf was not offered to the barn, as it has no room.
    pub(crate) fn note_full_barn(&self, cache: &KmemCache<P>) {
        if let Some(barn) = self.barn(cache) {
            barn.note_refused();
        }
        self.count(cache, StatItem::BarnPutFail, 1);
        self.note_barn(cache, true);
    }

    /// Takes an empty sheaf out of the barn.
    pub(crate) fn barn_get_empty(&self, cache: &KmemCache<P>, gfp: Gfp) -> Option<Sheaf> {
        let mut empty = self.barn(cache)?.get_empty(gfp.may_spin())?;
        self.fetch_room(&mut empty);
        Some(empty)
    }

    /// Stores an empty sheaf in the barn.
    ///
    /// # Errors
    ///
    /// The sheaf, when there is no room.
    pub(crate) fn barn_put_empty(
        &self,
        cache: &KmemCache<P>,
        mut sheaf: Sheaf,
        gfp: Gfp,
    ) -> Result<(), Sheaf> {
        self.offer_room(&mut sheaf);
        match self.barn(cache) {
            Some(barn) => barn.put_empty(sheaf, Self::empties_of(cache, barn), gfp.may_spin()),
            None => Err(sheaf),
        }
    }
}
