//! Calibration of the laboratory: costs of this machine, and a check of the model by real runs.
//!
//! | file | concept |
//! |---|---|
//! | `fit` | costs of instructions, fitted to real runs on one CPU |
//! | `hardware` | costs that need no allocator: lines, atomics, faults, calls |
//! | `real` | the laboratory's loads on the real allocator, on one and two CPUs |
//!
//! Four costs of the model stand for instructions. They are fitted to six real loads on one CPU.
//! All other rows are checks: the model says their time with these costs.

mod fit;
mod hardware;
mod real;

use std::fmt::Write;
use std::time::Duration;

use uslub_lab::{Costs, Experiment, Kind, Link, Load, Topology};

use crate::error::Failure;
use crate::linux;

/// Rounds of each measurement; the fastest counts, as other programs only make it slower.
const ROUNDS: usize = 7;
/// Steps of the fit.
const STEPS: usize = 3;
/// Largest deviation of the model from a real run, in per cent.
const GOAL: f64 = 15.0;
/// Microseconds of virtual time before a check, and of a check.
const WARM_US: u64 = 40_000;
const RUN_US: u64 = 5_000;
/// Objects of a bulk that exceeds all sheaves, and of one that does not.
const LARGE: usize = 512;
const SMALL: usize = 64;
/// A grace period, so short that a tree's nodes stay in the CPU's cache: the model's caches have no
/// limit.
const GRACE: Duration = Duration::from_micros(100);
/// Bytes of an object.
const SIZE: usize = 256;

/// A load that is run for real and in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Pairs of allocation and free.
    Pairs,
    /// Bulks of this many objects.
    Bulk(usize),
    /// Nodes of a maple tree.
    Maple,
    /// A producer and a consumer.
    Flow,
}

impl Check {
    fn name(self) -> String {
        match self {
            Check::Pairs => "pairs".to_owned(),
            Check::Bulk(n) => format!("bulks of {n}"),
            Check::Maple => "maple".to_owned(),
            Check::Flow => "producer and consumer".to_owned(),
        }
    }
}

/// A row: a load on some CPUs, in nanoseconds an operation.
struct Row {
    name: String,
    fitted: bool,
    real: f64,
    model: f64,
}

/// Costs of this machine, and how well the model does with them.
pub struct Calibration {
    /// The costs.
    pub costs: Costs,
    rows: Vec<Row>,
}

impl Row {
    fn deviation(&self) -> f64 {
        100.0 * (self.model / self.real - 1.0)
    }
}

impl Calibration {
    /// Costs and checks as text.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "costs of this machine, in ns (node, remote, hop and wake are not measured):\n",
        );
        for (name, value) in self.costs.values() {
            let _ = writeln!(text, "  {name:<14} {value:>9.2}");
        }
        let _ = writeln!(
            text,
            "\n  {:<30} {:>9} {:>9} {:>9}",
            "ns an operation", "real", "model", "off by"
        );
        for row in &self.rows {
            let off = row.deviation();
            let note = match (row.fitted, off.abs() <= GOAL) {
                (true, _) => "fitted to it",
                (false, true) => "",
                (false, false) => "more than 15 %",
            };
            let line = format!(
                "  {:<30} {:>9.2} {:>9.2} {off:>+7.1} % {note}",
                row.name, row.real, row.model
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

/// Nanoseconds of an operation in the model.
fn model(check: Check, own: f64, cpus: usize, costs: &Costs) -> Result<f64, Failure> {
    let kind = match check {
        Check::Pairs => Kind::Pairs,
        Check::Bulk(_) => Kind::Bulk,
        Check::Maple => Kind::Maple,
        Check::Flow => Kind::Flow,
    };
    let mut load = Load::usual(kind);
    load.size = SIZE;
    // The load's own time sets the pace: how many nodes a grace period holds up.
    load.work = own.round() as u64;
    load.link = Link::Near;
    load.grace_us = GRACE.as_micros() as u64;
    if let Check::Bulk(n) = check {
        load.bulk = n;
    }
    let wrong = |why: uslub_lab::Failure| Failure::Wrong(why.to_string());
    let experiment = Experiment {
        machine: Topology::new(cpus, 1, cpus, &[]).map_err(wrong)?,
        costs: *costs,
        load,
        settings: vec![],
        warm_us: WARM_US,
        run_us: RUN_US,
    };
    let figures = experiment.run(None).map_err(wrong)?;
    Ok(match check {
        // Producer and consumer work at the same time.
        Check::Flow => 1e3 / figures.rate,
        _ => figures.ns,
    })
}

/// Measures this machine, and checks the model on one and two CPUs.
///
/// # Errors
///
/// If the allocator or a thread cannot start.
pub fn calibrate(base: Costs) -> Result<Calibration, Failure> {
    let cpus = linux::two_cpus();
    let mut costs = base;
    hardware::measure(&mut costs, cpus)?;
    let known = fit::measured(&cpus[1..])?;
    for _ in 0..STEPS {
        fit::step(&mut costs, &known)?;
    }
    let mut rows = Vec::new();
    for known in &known {
        rows.push(row(known.check, &cpus[1..], &costs, Some(known.real))?);
    }
    for check in [Check::Bulk(SMALL), Check::Bulk(LARGE)] {
        rows.push(row(check, &cpus[1..], &costs, None)?);
    }
    if cpus[0] != cpus[1] {
        for check in [
            Check::Pairs,
            Check::Maple,
            Check::Bulk(SMALL),
            Check::Bulk(LARGE),
            Check::Flow,
        ] {
            rows.push(row(check, &cpus, &costs, None)?);
        }
    }
    Ok(Calibration { costs, rows })
}

/// A row: a real run, unless it is known already, and the model's.
fn row(
    check: Check,
    cpus: &[usize],
    costs: &Costs,
    known: Option<real::Time>,
) -> Result<Row, Failure> {
    let real = known.map_or_else(|| real::fastest(check, cpus), Ok)?;
    let mut costs = *costs;
    // A virtual machine's CPUs move: the cost of lines is that of the moment.
    if let Some(lines) = real.lines {
        hardware::set_lines(&mut costs, lines);
    }
    let plural = if cpus.len() > 1 { "s" } else { "" };
    Ok(Row {
        name: format!("{}, {} CPU{plural}", check.name(), cpus.len()),
        fitted: known.is_some(),
        real: real.calls(),
        model: model(check, real.own, cpus.len(), &costs)?,
    })
}
