//! One experiment: a load on a machine, warmed up and then measured.

use uslub_core_timed::percpu::stats::StatItem;
use uslub_core_timed::tunables::Tunables;

use crate::costs::Costs;
use crate::cpu::Times;
use crate::engine::{self, LockUse};
use crate::error::Failure;
use crate::policy::Policy;
use crate::topology::Topology;
use crate::workload::{Kind, Load, Program};
use crate::world::{Setup, World};

/// What to run.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The machine.
    pub machine: Topology,
    /// The cost model.
    pub costs: Costs,
    /// The load.
    pub load: Load,
    /// Settings of tunables, `key=value`.
    pub settings: Vec<String>,
    /// Microseconds of virtual time before the measurement.
    pub warm_us: u64,
    /// Microseconds of virtual time of the measurement.
    pub run_us: u64,
}

/// What an experiment measured. Times are virtual.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Figures {
    /// Operations.
    pub ops: u64,
    /// Million operations a second, all CPUs together.
    pub rate: f64,
    /// Nanoseconds of an operation: CPU time without sleep and without the load's own work.
    pub ns: f64,
    /// Waiting for list locks, in per cent of the CPU time.
    pub list_wait: f64,
    /// Waiting for barns' locks, in per cent of the CPU time.
    pub barn_wait: f64,
    /// Waiting for all other locks, in per cent of the CPU time.
    pub other_wait: f64,
    /// List locks taken, an operation.
    pub list_locks: f64,
    /// Lines that moved between CPUs, an operation.
    pub lines: f64,
    /// Of these, lines between nodes.
    pub remote_lines: f64,
    /// Lines from memory, an operation.
    pub memory_lines: f64,
    /// Objects freed to slabs, an operation.
    pub slow_frees: f64,
    /// Slabs taken from the page layer and returned, in a million operations.
    pub churn: f64,
    /// Bytes of objects in sheaves at the end.
    pub cached: u64,
    /// Bytes of slabs at the end.
    pub slabs: u64,
    /// All locks that were taken, by the type that they guard.
    pub locks: Vec<LockShare>,
}

/// Use of all locks that guard values of one type.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LockShare {
    /// The type, without its crate.
    pub guards: String,
    /// Times that it was taken, an operation.
    pub taken: f64,
    /// Of these, those that waited, in per cent.
    pub waits: f64,
    /// Waiting, in per cent of the CPU time.
    pub wait: f64,
}

/// Counters before and after.
#[derive(Clone, Copy)]
struct Counters {
    slow_frees: u64,
    churn: u64,
}

impl Counters {
    fn look(world: &World) -> Self {
        Self {
            slow_frees: world.count(StatItem::SheafFlush) + world.count(StatItem::FreeSlowpath),
            churn: world.count(StatItem::AllocSlab) + world.count(StatItem::FreeSlab),
        }
    }
}

impl Experiment {
    /// The tunables: the load's, then the user's.
    ///
    /// # Errors
    ///
    /// The first setting that no tunable accepts.
    pub fn tunables(&self) -> Result<Tunables, Failure> {
        let mut tunables = Tunables::DEFAULT;
        let own = self.load.settings().iter().copied();
        for setting in own.chain(self.settings.iter().map(String::as_str)) {
            tunables
                .set(setting)
                .map_err(|why| Failure::Wrong(why.to_string()))?;
        }
        Ok(tunables)
    }

    /// Runs it, with the allocator's own policy or with the user's.
    ///
    /// # Errors
    ///
    /// If a setting is wrong, if memory is missing, or if the allocator lost an object.
    pub fn run(&self, policy: Option<Box<dyn Policy>>) -> Result<Figures, Failure> {
        let mut world = World::new(Setup {
            machine: &self.machine,
            costs: &self.costs,
            tunables: self.tunables()?,
            seed: self.load.seed,
            grace_us: self.load.grace_us,
            policy,
        })?;
        let mut programs = self.load.programs(&world)?;
        if self.load.kind != Kind::Trace {
            play(&mut world, &mut programs, self.warm_us)?;
        }
        let before = Counters::look(&world);
        world.running().reset();
        let ops = play(&mut world, &mut programs, self.run_us)?;
        let figures = self.figures(&mut world, before, ops);
        end(&mut world, &mut programs)?;
        Ok(figures)
    }

    fn figures(&self, world: &mut World, before: Counters, ops: u64) -> Figures {
        let after = Counters::look(world);
        let times = world.running().times();
        let moves = world.running().moves();
        let uses = world.running().uses();
        let busy = |t: &Times| t.passed - t.idle;
        let cpu_time: u64 = times.iter().map(busy).sum();
        let own: u64 = times.iter().map(|t| busy(t).saturating_sub(t.work)).sum();
        let longest = times.iter().map(|t| t.passed).max().unwrap_or(1).max(1);
        let of = |part: &str| -> LockUse {
            let known = uses.iter().find(|(name, _)| name.ends_with(part));
            known.map_or(LockUse::default(), |(_, used)| *used)
        };
        let all: u64 = uses.iter().map(|(_, used)| used.waited).sum();
        let (list, barn) = (of("node::NodeLists"), of("barn::BarnLists"));
        let share = |waited: u64| 100.0 * waited as f64 / cpu_time.max(1) as f64;
        let each = |n: u64| n as f64 / ops.max(1) as f64;
        let (mut cached, mut slabs) = (0, 0);
        let slub = world.slub();
        slub.for_each_cache(|cache| {
            let info = slub.info(cache);
            cached += (info.cached_objs * cache.object_size()) as u64;
            slabs += (info.num_slabs * cache.geometry.bytes()) as u64;
        });
        Figures {
            ops,
            rate: ops as f64 * 1e6 / longest as f64,
            ns: each(own) / 1e3,
            list_wait: share(list.waited),
            barn_wait: share(barn.waited),
            other_wait: share(all - list.waited - barn.waited),
            list_locks: each(list.taken),
            lines: each(moves.between_cpus()),
            remote_lines: each(moves.remote),
            memory_lines: each(moves.memory),
            slow_frees: each(after.slow_frees - before.slow_frees),
            churn: 1e6 * each(after.churn - before.churn),
            cached,
            slabs,
            locks: uses
                .iter()
                .map(|(name, used)| LockShare {
                    guards: name.replace("uslub_core_timed::", ""),
                    taken: each(used.taken),
                    waits: 100.0 * used.waits as f64 / used.taken.max(1) as f64,
                    wait: share(used.waited),
                })
                .collect(),
        }
    }
}

/// Plays all programs for some microseconds; returns their operations.
fn play(world: &mut World, programs: &mut [Box<dyn Program>], us: u64) -> Result<u64, Failure> {
    let until = world.running().latest() + us * 1_000_000;
    let mut done = vec![0; programs.len()];
    let run = |(program, done): (&mut Box<dyn Program>, &mut u64)| {
        let program: *mut dyn Program = &raw mut **program;
        let done = &raw mut *done;
        let body = move || {
            // SAFETY: both live longer than the run, and only this CPU uses them meanwhile.
            let (program, done) = unsafe { (&mut *program, &mut *done) };
            while engine::now() < until && !program.is_done() {
                *done += program.step(until);
            }
        };
        Box::new(body) as Box<dyn FnOnce()>
    };
    let bodies = programs.iter_mut().zip(&mut done).map(run).collect();
    world.running().run(bodies)?;
    Ok(done.iter().sum())
}

/// Frees everything and checks that nothing was lost.
fn end(world: &mut World, programs: &mut [Box<dyn Program>]) -> Result<(), Failure> {
    for (cpu, program) in programs.iter_mut().enumerate() {
        world.running().on(cpu);
        program.end();
    }
    world.running().on(0);
    let slub = world.slub();
    slub.rcu_barrier();
    let mut lost = 0;
    slub.for_each_cache(|cache| {
        let info = slub.info(cache);
        lost += info.live_objs();
    });
    if lost > 0 {
        return Err(Failure::Broken(format!("{lost} objects are missing")));
    }
    slub.validate()
        .map_err(|invalid| Failure::Broken(format!("{invalid:?}")))
}
