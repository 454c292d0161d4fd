//! A call that must succeed or have no effect, whatever it is refused.
//!
//! It runs again and again, on an allocator of its own each time, while its first, second, third …
//! request is refused, or all from there on, until a run has no request to refuse. The system
//! refuses, or a site inside the allocator: the page layer, the store of sheaves, that of records.

use uslub_core::args::CacheArgs;
use uslub_core::platform::FaultSite;

use super::pattern::{fill, is_filled};
use super::{Setup, Slots, Slub, assert_all_is_given_back};

/// What a case holds: objects of kmalloc with their size, and objects of the cache.
#[derive(Default)]
pub struct Held {
    /// Objects of kmalloc with their size, filled.
    pub sized: Vec<(*mut u8, usize)>,
    /// Objects of the cache.
    pub objects: Vec<*mut u8>,
}

impl Held {
    /// Takes an object in; returns whether there is one.
    pub fn take(&mut self, object: *mut u8, bytes: usize) -> bool {
        if !object.is_null() {
            fill(object, bytes, bytes as u8);
            self.sized.push((object, bytes));
        }
        !object.is_null()
    }

    /// Verifies and frees all.
    pub fn free(self, a: &Slub) {
        for (object, bytes) in self.sized {
            assert!(is_filled(object, bytes, bytes as u8));
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
        for object in self.objects {
            // SAFETY: as above.
            unsafe { a.kfree(object) };
        }
    }
}

/// A case: what comes before, and the call that must succeed or have no effect.
pub struct Case {
    name: &'static str,
    /// Tunables.
    pub settings: &'static [&'static str],
    /// Memory nodes.
    pub nodes: usize,
    before: fn(&Slub, &mut Held),
    call: fn(&Slub, &mut Held) -> bool,
}

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refuser {
    /// The system: reservations, mappings, commitments.
    System,
    /// The allocator's own layers, at a site or (`None`) at any.
    Inside(Option<FaultSite>),
}

impl Case {
    /// A case without anything before.
    pub fn new(name: &'static str, call: fn(&Slub, &mut Held) -> bool) -> Self {
        Self {
            name,
            settings: &[],
            nodes: 1,
            before: |_, _| {},
            call,
        }
    }

    /// With what comes before.
    pub fn after(mut self, before: fn(&Slub, &mut Held)) -> Self {
        self.before = before;
        self
    }

    /// Runs the case with `refused` requests refused after `granted`; returns how many were,
    /// and what is mapped at the end.
    fn run(
        &self,
        slots: Slots,
        refuser: Refuser,
        granted: usize,
        refused: usize,
    ) -> (usize, usize) {
        let mut setup = Setup::with(self.settings);
        setup.slots = slots;
        setup.nodes = self.nodes;
        let a = setup.build();
        let mut held = Held::default();
        let mut args = CacheArgs::new("test", 96);
        args.sheaf_capacity = Some(8);
        a.create(&args).unwrap();
        (self.before)(&a, &mut held);
        let before = figures(&a, &held);
        match refuser {
            Refuser::System => a.platform.fail(granted, refused),
            Refuser::Inside(site) => a.platform.faults().at(site, granted, refused),
        }
        let done = (self.call)(&a, &mut held);
        let failed = a.platform.heal() + a.platform.faults().heal().1;
        let name = self.name;
        assert!(done || failed > 0, "{name}: failed for no reason");
        assert_eq!(a.validate(), Ok(()), "{name}");
        if !done {
            assert_eq!(figures(&a, &held), before, "{name}: failed with an effect");
            assert!(
                (self.call)(&a, &mut held),
                "{name}: fails after the failure"
            );
            assert_eq!(a.validate(), Ok(()), "{name}");
        }
        held.free(&a);
        assert_all_is_given_back(&a);
        // A large object may become a huge one when the range cannot grow; then there is their
        // table too.
        (failed, a.platform.mapped_bytes() - a.mapped.table_bytes())
    }

    /// Runs the case again and again, until no request is left to refuse.
    pub fn check(&self) {
        for slots in [Slots::Locked, Slots::Restartable] {
            let (_, mapped) = self.run(slots, Refuser::System, 0, 0);
            for refused in [1, 2, usize::MAX] {
                let mut granted = 0;
                loop {
                    let (failed, now) = self.run(slots, Refuser::System, granted, refused);
                    assert!(
                        now <= mapped,
                        "{}: {} bytes more are mapped after a failure of request {granted}",
                        self.name,
                        now - mapped
                    );
                    if failed == 0 {
                        break;
                    }
                    granted += 1;
                }
                assert!(granted < 200, "{}: asks very often", self.name);
            }
            self.check_inside(slots);
        }
    }

    /// The same at each site inside the allocator, and at all of them.
    fn check_inside(&self, slots: Slots) {
        for site in FaultSite::ALL.map(Some).into_iter().chain([None]) {
            for refused in [1, usize::MAX] {
                let mut granted = 0;
                // The first ones one by one, then in growing steps.
                while self.run(slots, Refuser::Inside(site), granted, refused).0 > 0 {
                    granted += 1 + granted / 4;
                }
            }
        }
    }
}

/// What a failed call must not change.
fn figures(a: &Slub, held: &Held) -> (usize, usize, usize, usize, usize, u64) {
    let live: usize = a.caches().map(|cache| a.info(cache).live_objs()).sum();
    let t = a.totals();
    (
        live,
        t.large,
        t.huge,
        held.sized.len(),
        held.objects.len(),
        t.allocs - t.frees,
    )
}
