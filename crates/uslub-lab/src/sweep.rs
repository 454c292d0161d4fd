//! Sweeps: one load on machines of several sizes, with each combination of settings.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::costs::Costs;
use crate::error::Failure;
use crate::policy::Policy;
use crate::run::{Experiment, Figures};
use crate::topology::Topology;
use crate::workload::{Kind, Load};

/// What to sweep.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The load.
    pub load: Load,
    /// Numbers of CPUs.
    pub cpus: Vec<usize>,
    /// Numbers of memory nodes.
    pub nodes: Vec<usize>,
    /// CPUs of a last-level cache.
    pub llc: usize,
    /// Nodes with memory; none: all.
    pub memory_nodes: Vec<usize>,
    /// Settings: for each tunable, `key=value` for each value.
    pub settings: Vec<Vec<String>>,
    /// The cost model.
    pub costs: Costs,
    /// Microseconds of virtual time before the measurement.
    pub warm_us: u64,
    /// Microseconds of virtual time of the measurement.
    pub run_us: u64,
}

/// One experiment of a sweep, and its figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Point {
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// The settings that the sweep changes.
    pub settings: Vec<String>,
    /// What was measured.
    pub figures: Figures,
}

/// The results of a sweep.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    /// The load.
    pub workload: Kind,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The cost model.
    pub costs: Costs,
    /// Microseconds of virtual time of each measurement.
    pub run_us: u64,
    /// All experiments: by settings, then by nodes, then by CPUs.
    pub points: Vec<Point>,
}

/// Splits `key=a,b` into `key=a` and `key=b`.
///
/// ```
/// assert_eq!(uslub_lab::values_of("look_ahead=0,3").unwrap(), ["look_ahead=0", "look_ahead=3"]);
/// assert!(uslub_lab::values_of("look_ahead").is_err());
/// ```
///
/// # Errors
///
/// If there is no `=`.
pub fn values_of(setting: &str) -> Result<Vec<String>, Failure> {
    let Some((key, values)) = setting.split_once('=') else {
        return Err(Failure::Wrong(format!(
            "'{setting}' is not of the form KEY=VALUE,VALUE…"
        )));
    };
    Ok(values
        .split(',')
        .map(|value| format!("{}={}", key.trim(), value.trim()))
        .collect())
}

impl Sweep {
    /// All combinations of the settings.
    fn combinations(&self) -> Vec<Vec<String>> {
        self.settings.iter().fold(vec![vec![]], |all, values| {
            let with = |before: &Vec<String>| -> Vec<Vec<String>> {
                let one =
                    |value: &String| [before.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(one).collect()
            };
            all.iter().flat_map(with).collect()
        })
    }

    /// All experiments.
    ///
    /// # Errors
    ///
    /// If a machine or a setting is impossible.
    pub fn experiments(&self) -> Result<Vec<(Vec<String>, Experiment)>, Failure> {
        let mut all = Vec::new();
        for settings in self.combinations() {
            for &nodes in &self.nodes {
                for &cpus in &self.cpus {
                    let experiment = Experiment {
                        machine: Topology::new(cpus, nodes, self.llc, &self.memory_nodes)?,
                        costs: self.costs,
                        load: self.load.clone(),
                        settings: settings.clone(),
                        warm_us: self.warm_us,
                        run_us: self.run_us,
                    };
                    experiment.tunables()?;
                    all.push((settings.clone(), experiment));
                }
            }
        }
        Ok(all)
    }

    /// Runs all experiments, on as many threads as the system has CPUs. `policy` makes the policy
    /// of each, `ran` is called after each with how many are done and how many there are.
    ///
    /// # Errors
    ///
    /// The first failure of an experiment.
    pub fn run(
        &self,
        policy: impl Fn() -> Option<Box<dyn Policy>> + Sync,
        ran: impl Fn(usize, usize) + Sync,
    ) -> Result<Report, Failure> {
        let experiments = self.experiments()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Relaxed, both: the numbers publish no other data.
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results: Vec<_> = experiments.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads.min(experiments.len()) {
                scope.spawn(|| {
                    loop {
                        // Relaxed: see above.
                        let at = next.fetch_add(1, Relaxed);
                        let Some((_, experiment)) = experiments.get(at) else {
                            break;
                        };
                        let result = experiment.run(policy());
                        if let Ok(mut place) = results[at].lock() {
                            *place = Some(result);
                        }
                        // Relaxed: see above.
                        ran(done.fetch_add(1, Relaxed) + 1, experiments.len());
                    }
                });
            }
        });
        let mut points = Vec::new();
        for ((settings, experiment), result) in experiments.into_iter().zip(results) {
            let missing = || Failure::Broken("an experiment ended without a result".to_owned());
            let result = result
                .into_inner()
                .map_err(|_| missing())?
                .ok_or_else(missing)?;
            points.push(Point {
                cpus: experiment.machine.cpus,
                nodes: experiment.machine.nodes,
                settings,
                figures: result?,
            });
        }
        Ok(Report {
            workload: self.load.kind,
            seed: self.load.seed,
            costs: self.costs,
            run_us: self.run_us,
            points,
        })
    }
}

impl Report {
    /// All figures as JSON.
    ///
    /// # Errors
    ///
    /// If a figure has no JSON form.
    pub fn json(&self) -> Result<String, Failure> {
        serde_json::to_string_pretty(self).map_err(|why| Failure::Broken(why.to_string()))
    }
}
