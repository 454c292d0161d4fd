//! The cache API in any order, with all flags and all tunings, on the test platform.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use uslub_core::Gfp;
use uslub_core::platform::Platform;
use uslub_fuzz::support::{Setup, hop, on_cpu};
use uslub_fuzz::world::{Wanted, Way, World};
use uslub_fuzz::{Size, setup};

/// What is tried: a platform, and calls.
#[derive(Debug)]
struct Input {
    setup: Setup,
    first: Wanted,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            setup: setup::setup(u)?,
            first: wanted(u)?,
            steps: u.arbitrary()?,
        })
    }
}

/// Arguments of a cache, most of them good ones.
fn wanted(u: &mut Unstructured<'_>) -> Result<Wanted> {
    let size = match u.int_in_range(0..=9)? {
        0 => u.int_in_range(0..=70_000)?,
        1 => 1 << u.int_in_range(0..=16)?,
        _ => u.arbitrary::<Size>()?.bytes() % 3000 + 1,
    };
    let align = match u.int_in_range(0..=9)? {
        0 => u.int_in_range(0..=9000)?,
        1..=4 => 1 << u.int_in_range(0..=12)?,
        _ => 0,
    };
    Ok(Wanted {
        size,
        align,
        flags: u.int_in_range(0..=15)?,
        ctor: u.ratio(1, 4)?,
        limit: match u.ratio(1, 5)? {
            true => Some(u.int_in_range(0..=1 << 18)?),
            false => None,
        },
        free_gfp: *u.choose(&[Gfp::KERNEL, Gfp::KERNEL, Gfp::NOWAIT, Gfp::NOSPIN])?,
        tuning: match u.ratio(1, 2)? {
            true => Some(setup::tuning(u)?),
            false => None,
        },
        max_order: some(u, 0, 5)?.map(|n| n as u32),
        min_objects: some(u, 0, 100)?,
        sheaf_capacity: some(u, 0, 249)?,
        kept_bytes: some(u, 0, 1 << 17)?,
    })
}

fn some(u: &mut Unstructured<'_>, min: usize, max: usize) -> Result<Option<usize>> {
    Ok(match u.ratio(1, 4)? {
        true => Some(u.int_in_range(min..=max)?),
        false => None,
    })
}

/// A step; the first number selects among the caches.
#[derive(Arbitrary, Debug)]
enum Step {
    Create(#[arbitrary(with = wanted)] Wanted),
    Alloc(u8, u8, u8),
    AllocNode(u8, u8, u8, u8),
    AllocBulk(u8, u16, u8),
    Free(u8, u16, u8, u8),
    FreeWith(u8, u16, u8, u8, u8),
    FreeAll(u8, u8),
    Prefill(u8, u16, u8),
    AllocFrom(u8, u8, u8),
    Refill(u8, u16, u8),
    GiveBack(u8, u8),
    Shrink(u8),
    Flush(u8),
    ShrinkAll,
    Trim,
    Destroy(u8),
    Cpu(u8),
    Hop(u8),
    Advance(u16),
    Tick,
    Refuse(u8, u8),
    Heal,
    CtorFails(bool),
    Purges(bool),
    PerCpuUsable(bool),
    Disturb(u8),
    EndGrace,
    Barrier,
    Fork(bool),
    Compare,
}

fn gfp(byte: u8) -> Gfp {
    let context = match byte % 8 {
        0 => Gfp::NOWAIT,
        1 => Gfp::NOSPIN,
        _ => Gfp::KERNEL,
    };
    let more = [(8, Gfp::ZERO), (16, Gfp::THISNODE), (32, Gfp::NOFAIL)];
    more.iter()
        .filter(|(bit, _)| byte & bit != 0)
        .fold(context, |all, &(_, flag)| all | flag)
}

fn way(byte: u8) -> Way {
    [Way::Single, Way::Bulk, Way::Unchecked, Way::Kfree, Way::Rcu][usize::from(byte % 5)]
}

fn run(world: &mut World, setup: &Setup, step: &Step) {
    let of = |which: u8| match world.nr() {
        0 => None,
        nr => Some(usize::from(which) % nr),
    };
    macro_rules! with {
        ($which:expr, |$at:ident| $work:expr) => {
            if let Some($at) = of($which) {
                $work
            }
        };
    }
    match *step {
        Step::Create(ref wanted) => world.create(wanted),
        Step::Alloc(c, n, g) => with!(c, |at| world.alloc(at, n.into(), gfp(g), None)),
        Step::AllocNode(c, n, g, nid) => {
            let nid = Some(usize::from(nid) % (setup.nodes + 1));
            with!(c, |at| world.alloc(at, n.into(), gfp(g), nid));
        }
        Step::AllocBulk(c, n, g) => {
            with!(c, |at| world.alloc_bulk(at, usize::from(n) % 1200, gfp(g)));
        }
        Step::Free(c, from, n, w) => {
            with!(c, |at| world.free(at, from.into(), n.into(), way(w), None));
        }
        Step::FreeWith(c, from, n, w, g) => {
            let gfp = Some(gfp(g) & Gfp::KERNEL);
            with!(c, |at| world.free(at, from.into(), n.into(), way(w), gfp));
        }
        Step::FreeAll(c, w) => with!(c, |at| world.free(at, 0, usize::MAX, way(w), None)),
        Step::Prefill(c, n, g) => {
            with!(c, |at| world.prefill(at, usize::from(n) % 700 + 1, gfp(g)));
        }
        Step::AllocFrom(c, n, g) => with!(c, |at| world.alloc_from(at, n.into(), gfp(g))),
        Step::Refill(c, n, g) => with!(c, |at| world.refill(at, usize::from(n) % 700, gfp(g))),
        Step::GiveBack(c, g) => with!(c, |at| world.give_back(at, gfp(g) & Gfp::KERNEL)),
        Step::Shrink(c) => with!(c, |at| {
            world.a.shrink(world.cache(at));
        }),
        Step::Flush(c) => with!(c, |at| world.a.flush(world.cache(at))),
        Step::ShrinkAll => world.a.shrink_all(),
        Step::Trim => {
            world.a.trim();
        }
        Step::Destroy(c) => with!(c, |at| world.destroy(at)),
        Step::Cpu(cpu) => on_cpu(usize::from(cpu) % setup.cpus),
        Step::Hop(seed) => hop(seed.into()),
        Step::Advance(ms) => world.a.platform.advance(u64::from(ms) % 4000),
        Step::Tick => world.a.tick(world.a.platform.now_ms()),
        Step::Refuse(grant, refuse) => {
            world.refuse(usize::from(grant % 4), usize::from(refuse % 6) + 1);
        }
        Step::Heal => world.heal(),
        Step::CtorFails(fails) => world.set_ctor_fails(fails),
        Step::Purges(succeed) => world.a.platform.set_purges(succeed),
        Step::PerCpuUsable(usable) => world.a.platform.set_percpu_usable(usable),
        Step::Disturb(one_in) => world.a.platform.disturb(u32::from(one_in % 8)),
        Step::EndGrace => world.end_grace(),
        Step::Barrier => world.barrier(),
        Step::Fork(child) => {
            world.a.lock_for_fork();
            // SAFETY: this thread took the locks, and is the only one.
            unsafe {
                match child {
                    true => world.a.reset_after_fork(),
                    false => world.a.unlock_after_fork(),
                }
            }
        }
        Step::Compare => world.compare(),
    }
}

fuzz_target!(|input: Input| {
    let mut world = World::new(input.setup);
    world.create(&input.first);
    for (i, step) in input.steps.iter().take(200).enumerate() {
        run(&mut world, &input.setup, step);
        if i % 16 == 15 {
            world.compare();
        }
    }
    world.finish();
});
