//! The barn: full and empty sheaves of one cache, shared by a group of CPUs of a node.
//!
//! CPUs exchange whole sheaves here: one short hold of a lock moves many objects. The limits are
//! soft, since callers peek at the counts without the lock.
//!
//! If one CPU frees many objects and another allocates them, a barn may be too full for the one
//! and, a moment later, too empty for the other. Objects would then go to their slabs for nothing.
//!
//! | event | the barn's limit of full sheaves |
//! |---|---|
//! | a full sheaf rejected, then a miss | a quarter higher ([`widen`](Barn::widen)) |
//! | full sheaves unused since the last check | lower by half of them, the surplus |
//! | `take_all` | back to the cache's limit |
//!
//! [`take_surplus`](Barn::take_surplus) removes the surplus. Callers: `barn_access` and `drain`.

use core::mem::take;
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::{Row, rows};
use crate::percpu::sheaf::Sheaf;
use crate::percpu::sheaf_list::SheafList;
use crate::platform::Platform;
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::sync::{Lock, RawLock};

#[derive(Default)]
struct BarnLists {
    full: SheafList,
    empty: SheafList,
    /// At most one sheaf: leftovers of refills, with `sheaf_spill=2`.
    spilled: SheafList,
    /// Least number of full sheaves since the last surplus check.
    low_water: usize,
}

/// The barn of one cache and group of CPUs. They write to it in turn, so it has its cache lines to
/// itself.
#[repr(align(64))]
pub struct Barn<P> {
    lists: Lock<P, BarnLists>,
    nr_full: AtomicU32,
    nr_empty: AtomicU32,
    /// Extra capacity: full sheaves allowed beyond the cache's limit.
    extra_capacity: AtomicU32,
    /// Whether a full sheaf was rejected since the last surplus check.
    rejected_recently: AtomicBool,
    /// The last consumer: the CPU that last took full sheaves, or new slabs for a bulk, plus one; 0
    /// at first.
    last_consumer: AtomicU32,
}

impl<P: Platform> Barn<P> {
    pub(crate) const ROWS: &'static [Row] = rows!("Barn", Self, [nr_full, nr_empty]);
    /// The lists of full and of empty sheaves.
    pub(crate) const LISTS: [Row; 2] = {
        let lists = core::mem::offset_of!(Self, lists) + Lock::<P, BarnLists>::VALUE;
        let (full, empty) = (
            core::mem::offset_of!(BarnLists, full),
            core::mem::offset_of!(BarnLists, empty),
        );
        let bytes = size_of::<SheafList>();
        [
            Row::new("Barn.full", lists + full, bytes),
            Row::new("Barn.empty", lists + empty, bytes),
        ]
    };

    /// An empty barn.
    pub const fn new() -> Self {
        Self {
            lists: Lock::new(BarnLists {
                full: SheafList::new(),
                empty: SheafList::new(),
                spilled: SheafList::new(),
                low_water: 0,
            }),
            nr_full: AtomicU32::new(0),
            nr_empty: AtomicU32::new(0),
            extra_capacity: AtomicU32::new(0),
            rejected_recently: AtomicBool::new(false),
            last_consumer: AtomicU32::new(0),
        }
    }

    /// Number of full sheaves; may be stale.
    pub fn nr_full(&self) -> usize {
        // Relaxed: a peek; limits are soft.
        self.nr_full.load(Relaxed) as usize
    }

    /// Number of empty sheaves; may be stale.
    pub fn nr_empty(&self) -> usize {
        // Relaxed: a peek; limits are soft.
        self.nr_empty.load(Relaxed) as usize
    }

    /// Full sheaves allowed beyond the cache's limit.
    pub fn extra_capacity(&self) -> usize {
        // Relaxed: a peek; limits are soft.
        self.extra_capacity.load(Relaxed) as usize
    }

    /// Records that a full sheaf was rejected.
    pub fn record_rejection(&self) {
        // Relaxed, both: a hint. Stored only once: a CPU that just peeks at the barn must not take
        // its cache line from others.
        if !self.rejected_recently.load(Relaxed) {
            self.rejected_recently.store(true, Relaxed);
        }
    }

    /// Records a miss. If a full sheaf was rejected shortly before, raises the limit (`limit` plus
    /// extra capacity) by a quarter, up to `most`.
    pub fn widen(&self, limit: usize, most: usize) {
        // Relaxed, here and below: hints; a concurrent call may widen it once more, or not.
        if self.rejected_recently.load(Relaxed) {
            self.rejected_recently.store(false, Relaxed);
            let wide = limit + self.extra_capacity();
            let wider = (wide + wide / 4 + 1).min(most);
            // Relaxed: as above.
            self.extra_capacity
                .store(wider.saturating_sub(limit) as u32, Relaxed);
        }
    }

    /// Records that a CPU has taken full sheaves, or new slabs for a bulk.
    pub fn record_consumer(&self, cpu: usize) {
        let last_consumer = cpu as u32 + 1;
        // Relaxed, here and below: a hint. Stored only if it changes, as in `record_rejection`.
        if self.last_consumer.load(Relaxed) != last_consumer {
            self.last_consumer.store(last_consumer, Relaxed);
        }
    }

    /// Whether the last consumer is another CPU.
    pub fn is_emptied_elsewhere(&self, cpu: usize) -> bool {
        // Relaxed: a hint.
        let last_consumer = self.last_consumer.load(Relaxed);
        last_consumer != 0 && last_consumer != cpu as u32 + 1
    }

    fn with<T>(&self, spin: bool, work: impl FnOnce(&mut BarnLists) -> T) -> Option<T> {
        let mut lists = self.lists.lock_if(spin)?;
        let result = work(&mut lists);
        // Relaxed: copies for lock-free readers, written under the lock.
        self.nr_full.store(lists.full.len() as u32, Relaxed);
        self.nr_empty.store(lists.empty.len() as u32, Relaxed);
        Some(result)
    }

    /// Takes the sheaf of leftovers.
    pub fn get_spilled(&self, spin: bool) -> Option<Sheaf> {
        self.with(spin, |lists| lists.spilled.pop())?
    }

    /// Stores a sheaf of leftovers; gives it back if there is one already, or if `spin` is false
    /// and the lock is taken.
    pub fn put_spilled(&self, sheaf: Sheaf, spin: bool) -> Result<(), Sheaf> {
        self.put(sheaf, 1, spin, |lists| &mut lists.spilled)
    }

    /// Takes an empty sheaf.
    pub fn get_empty(&self, spin: bool) -> Option<Sheaf> {
        if self.nr_empty() == 0 {
            return None;
        }
        self.with(spin, |lists| lists.empty.pop())?
    }

    /// Stores a full sheaf; gives it back if the barn has `limit` full ones, or if `spin` is false
    /// and the lock is taken.
    pub fn put_full(&self, sheaf: Sheaf, limit: usize, spin: bool) -> Result<(), Sheaf> {
        self.put(sheaf, limit, spin, |lists| &mut lists.full)
    }

    /// Stores an empty sheaf, as [`put_full`](Self::put_full).
    pub fn put_empty(&self, sheaf: Sheaf, limit: usize, spin: bool) -> Result<(), Sheaf> {
        debug_assert!(sheaf.is_empty());
        self.put(sheaf, limit, spin, |lists| &mut lists.empty)
    }

    /// Takes a full sheaf, and stores `empty` if there is room, under one hold of the lock. A sheaf
    /// that is not stored stays in `empty`.
    pub fn exchange_empty(
        &self,
        empty: &mut Option<Sheaf>,
        limit: usize,
        spin: bool,
    ) -> Option<Sheaf> {
        if self.nr_full() == 0 {
            return None;
        }
        let work = |lists: &mut BarnLists| {
            let full = lists.full.pop()?;
            lists.low_water = lists.low_water.min(lists.full.len());
            if lists.empty.len() < limit
                && let Some(empty) = empty.take()
            {
                lists.empty.push(empty);
            }
            Some(full)
        };
        self.with(spin, work)?
    }

    /// As [`put_full`](Self::put_full), and takes an empty sheaf if there is one, under one hold of
    /// the lock.
    pub fn exchange_full(
        &self,
        full: Sheaf,
        limit: usize,
        spin: bool,
    ) -> Result<Option<Sheaf>, Sheaf> {
        let mut full = Some(full);
        let empty = self.with(spin, |lists| {
            if lists.full.len() < limit
                && let Some(full) = full.take()
            {
                lists.full.push(full);
                return lists.empty.pop();
            }
            None
        });
        full.map_or(Ok(empty.flatten()), Err)
    }

    /// Takes up to `n` full sheaves, under one hold of the lock.
    pub fn get_fulls(&self, n: usize, spin: bool) -> SheafList {
        if self.nr_full() == 0 {
            return SheafList::new();
        }
        let work = |lists: &mut BarnLists| {
            let fulls = lists.full.split(n);
            lists.low_water = lists.low_water.min(lists.full.len());
            fulls
        };
        self.with(spin, work).unwrap_or_default()
    }

    /// Takes up to `n` empty sheaves, under one hold of the lock.
    pub fn get_empties(&self, n: usize, spin: bool) -> SheafList {
        if self.nr_empty() == 0 {
            return SheafList::new();
        }
        (self.with(spin, |lists| lists.empty.split(n))).unwrap_or_default()
    }

    /// Stores full sheaves up to `limit`, under one hold of the lock; the others stay in the list.
    pub fn put_fulls(&self, sheaves: &mut SheafList, limit: usize, spin: bool) {
        self.put_all(sheaves, limit, spin, |lists| &mut lists.full);
    }

    /// Stores empty sheaves, as [`put_fulls`](Self::put_fulls).
    pub fn put_empties(&self, sheaves: &mut SheafList, limit: usize, spin: bool) {
        self.put_all(sheaves, limit, spin, |lists| &mut lists.empty);
    }

    fn put_all(
        &self,
        sheaves: &mut SheafList,
        limit: usize,
        spin: bool,
        list: impl Fn(&mut BarnLists) -> &mut SheafList,
    ) {
        if sheaves.is_empty() {
            return;
        }
        self.with(spin, |lists| {
            let list = list(lists);
            while list.len() < limit
                && let Some(sheaf) = sheaves.pop()
            {
                list.push(sheaf);
            }
        });
    }

    fn put(
        &self,
        sheaf: Sheaf,
        limit: usize,
        spin: bool,
        list: impl Fn(&mut BarnLists) -> &mut SheafList,
    ) -> Result<(), Sheaf> {
        let mut sheaf = Some(sheaf);
        self.with(spin, |lists| {
            let list = list(lists);
            if list.len() < limit {
                sheaf.take().into_iter().for_each(|sheaf| list.push(sheaf));
            }
        });
        sheaf.map_or(Ok(()), Err)
    }

    /// Takes half of the full sheaves that no CPU needed since the last call, and the empty ones
    /// beyond two. The extra capacity falls by as much.
    pub fn take_surplus(&self) -> SheafList {
        let work = |lists: &mut BarnLists| {
            let unused = lists.low_water.min(lists.full.len());
            let mut surplus = lists.full.split(unused.div_ceil(2));
            let extra = self.extra_capacity().saturating_sub(surplus.len());
            // Relaxed, both: hints.
            self.extra_capacity.store(extra as u32, Relaxed);
            self.rejected_recently.store(false, Relaxed);
            lists.low_water = lists.full.len();
            while lists.empty.len() > 2
                && let Some(sheaf) = lists.empty.pop()
            {
                surplus.push(sheaf);
            }
            surplus
        };
        self.with(true, work).unwrap_or_default()
    }

    /// Takes all sheaves, those with objects and the empty ones; the extra capacity becomes 0.
    pub fn take_all(&self) -> (SheafList, SheafList) {
        // Relaxed, both: hints.
        self.extra_capacity.store(0, Relaxed);
        self.rejected_recently.store(false, Relaxed);
        self.with(true, |lists| {
            (lists.spilled.pop().into_iter()).for_each(|sheaf| lists.full.push(sheaf));
            (take(&mut lists.full), take(&mut lists.empty))
        })
        .unwrap_or_default()
    }

    /// Calls `visit` with the objects of each sheaf.
    pub fn for_each_full(&self, mut visit: impl FnMut(&[*mut u8])) {
        let lists = self.lists.lock();
        lists.full.for_each(&mut visit);
        lists.spilled.for_each(visit);
    }

    /// Number of sheaves with leftovers: 0 or 1.
    pub fn nr_spilled(&self) -> usize {
        self.lists.lock().spilled.len()
    }

    /// Whether the lock is taken; may be stale.
    pub fn is_held(&self) -> bool {
        self.lists.is_held()
    }

    /// The lock without the lists, for a fork.
    pub fn raw_lock(&self) -> &RawLock<P> {
        self.lists.raw()
    }
}

impl<P: Platform> Default for Barn<P> {
    fn default() -> Self {
        Self::new()
    }
}
