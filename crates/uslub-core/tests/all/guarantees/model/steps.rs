//! The steps of a walk, and the setups that it may begin with.

use super::CPUS;
use crate::support::{SYSTEM_PAGES, Setup, Slots};
use proptest::prelude::*;
use uslub_core::Gfp;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};

/// One step; numbers select among what is there.
#[derive(Clone, Debug)]
pub enum Step {
    Kmalloc(usize, Flags),
    Aligned(usize, u32),
    Kfree(usize),
    Krealloc(usize, usize),
    Alloc(usize, usize, Flags),
    Free(usize, usize),
    AllocBulk(usize, usize, Flags),
    FreeBulk(usize, usize),
    Shrink(usize),
    ShrinkAll,
    Trim,
    Cpu(usize),
    Hop(u64),
    Advance(u64),
    Tick,
    Refuse(usize, usize),
    Heal,
    Purges(bool),
    Sheaves(bool),
}

/// Context of a call.
#[derive(Clone, Copy, Debug)]
pub enum Flags {
    Kernel,
    Zero,
    Nowait,
    Nospin,
}

impl Flags {
    pub fn gfp(self) -> Gfp {
        match self {
            Flags::Kernel => Gfp::KERNEL,
            Flags::Zero => Gfp::KERNEL | Gfp::ZERO,
            Flags::Nowait => Gfp::NOWAIT,
            Flags::Nospin => Gfp::NOSPIN,
        }
    }

    /// Constructed objects are never asked for zeroed.
    pub fn for_cache(self, which: usize) -> Self {
        match self {
            Flags::Zero if which == 1 => Flags::Kernel,
            flags => flags,
        }
    }
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0usize..300,
        4 => 300usize..5000,
        2 => 5000..=CLASS_MAX,
        2 => CLASS_MAX + 1..=LARGE_MAX / 4,
        1 => LARGE_MAX / 4..=LARGE_MAX,
        1 => LARGE_MAX + 1..6 << 20,
    ]
}

fn flags() -> impl Strategy<Value = Flags> {
    prop_oneof![
        8 => Just(Flags::Kernel),
        2 => Just(Flags::Zero),
        1 => Just(Flags::Nowait),
        1 => Just(Flags::Nospin),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<usize>;
    let step = prop_oneof![
        12 => (sizes(), flags()).prop_map(|(n, f)| Step::Kmalloc(n, f)),
        2 => (sizes(), 0u32..22).prop_map(|(n, shift)| Step::Aligned(n, shift)),
        12 => any().prop_map(Step::Kfree),
        6 => (any(), sizes()).prop_map(|(at, n)| Step::Krealloc(at, n)),
        6 => (0usize..2, 1usize..20, flags()).prop_map(|(c, n, f)| Step::Alloc(c, n, f)),
        6 => (any(), 1usize..20).prop_map(|(at, n)| Step::Free(at, n)),
        3 => (0usize..2, 0usize..200, flags()).prop_map(|(c, n, f)| Step::AllocBulk(c, n, f)),
        3 => (0usize..2, 0usize..200).prop_map(|(c, n)| Step::FreeBulk(c, n)),
        1 => (0usize..2).prop_map(Step::Shrink),
        1 => Just(Step::ShrinkAll),
        1 => Just(Step::Trim),
        4 => (0..CPUS).prop_map(Step::Cpu),
        1 => (1u64..).prop_map(Step::Hop),
        1 => (0u64..3000).prop_map(Step::Advance),
        1 => Just(Step::Tick),
        2 => (0usize..3, 1usize..4).prop_map(|(n, m)| Step::Refuse(n, m)),
        2 => Just(Step::Heal),
        1 => prop::bool::weighted(0.7).prop_map(Step::Purges),
        1 => prop::bool::weighted(0.7).prop_map(Step::Sheaves),
    ];
    prop::collection::vec(step, 1..160)
}

/// Some of the old ways, and of the new ones that are off by default.
fn strategies() -> impl Strategy<Value = Vec<&'static str>> {
    let others = vec![
        "freelist_deferred=0",
        "slab_state_lockfree=0",
        "detached_freelist=0",
        "look_ahead=0",
        "look_ahead=8",
        "sheaf_spill=1",
        "sheaf_spill=2",
        "refill_min_percent=50",
        "empty_reserve=1",
        "sheaf_capacity=4",
        "sheaf_capacity_max=250",
        "refill_needs_blocking=1",
    ];
    prop_oneof![
        1 => Just(vec![]),
        2 => prop::sample::subsequence(others, 0..=12),
    ]
}

pub fn setups() -> impl Strategy<Value = (Setup, u32)> {
    let slots = prop_oneof![
        2 => Just(Slots::Locked),
        1 => Just(Slots::Restartable),
        1 => Just(Slots::WithoutFence),
    ];
    (
        slots,
        0u32..2,
        0u32..2,
        0u32..3,
        prop_oneof![3 => Just(0u32), 1 => 2u32..8],
        strategies(),
        prop::sample::select(&SYSTEM_PAGES),
    )
        .prop_map(|(slots, random, hardened, small, disturb, old, page)| {
            let mut setup = Setup::with(&[
                &format!("slab_freelist_random={random}"),
                &format!("slab_freelist_hardened={hardened}"),
            ]);
            if small > 0 {
                setup.tunables.tuning.sheaf_capacity = small;
                setup.tunables.tuning.max_full_sheaves = 1;
                setup.tunables.tuning.max_empty_sheaves = small - 1;
                setup.tunables.tuning.min_partial = small;
            }
            for name in old {
                setup.tunables.set(name).unwrap();
            }
            setup.cpus = CPUS;
            setup.slots = slots;
            setup.page = page;
            (setup, disturb)
        })
}
