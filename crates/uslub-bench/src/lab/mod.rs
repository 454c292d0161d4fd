//! Calibration of the laboratory: costs of this machine, and a check of the model by real runs.
//!
//! | file | concept |
//! |---|---|
//! | `hardware` | costs that need no allocator: lines, atomics, faults, calls |
//! | `real` | the laboratory's loads on the real allocator, on one and two CPUs |
//!
//! Two costs of the model stand for instructions: `fast` and `hit`. They are fitted to two real
//! runs on one CPU. All other rows are checks: the model says their time with these costs.

mod hardware;
mod real;

use std::fmt::Write;

use uslub_lab::{Costs, Experiment, Kind, Link, Load, Topology};

use crate::error::Failure;
use crate::linux;

/// Rounds of each measurement; the fastest counts, as other programs only make it slower.
const ROUNDS: usize = 7;
/// Steps of the fit.
const STEPS: usize = 4;
/// Largest deviation of the model from a real run, in per cent.
const GOAL: f64 = 15.0;
/// Microseconds of virtual time of a check, and before it.
const TIME_US: u64 = 3_000;
/// Objects of a bulk that exceeds all sheaves, and of one that does not.
const LARGE: usize = 512;
const SMALL: usize = 64;
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
fn model(check: Check, cpus: usize, costs: &Costs) -> Result<f64, Failure> {
    let kind = match check {
        Check::Pairs => Kind::Pairs,
        Check::Bulk(_) => Kind::Bulk,
        Check::Maple => Kind::Maple,
        Check::Flow => Kind::Flow,
    };
    let mut load = Load::usual(kind);
    load.size = SIZE;
    load.work = 0;
    load.link = Link::Near;
    if let Check::Bulk(n) = check {
        load.bulk = n;
    }
    let wrong = |why: uslub_lab::Failure| Failure::Wrong(why.to_string());
    let experiment = Experiment {
        machine: Topology::new(cpus, 1, cpus, &[]).map_err(wrong)?,
        costs: *costs,
        load,
        settings: vec![],
        // The load of a tree is even only after some grace periods.
        warm_us: if check == Check::Maple {
            20_000
        } else {
            TIME_US
        },
        run_us: if check == Check::Maple {
            20_000
        } else {
            TIME_US
        },
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
    let pairs = real::fastest(Check::Pairs, &cpus[1..])?;
    let maple = real::fastest(Check::Maple, &cpus[1..])?;
    for _ in 0..STEPS {
        let some = model(Check::Maple, 1, &costs)?;
        let none = model(Check::Maple, 1, &Costs { hit: 0.0, ..costs })?;
        let each = (some - none) / costs.hit.max(1e-3);
        costs.hit = ((maple - none) / each.max(1e-3)).clamp(0.05, 20.0);
        let off = pairs - model(Check::Pairs, 1, &costs)?;
        costs.fast = (costs.fast + off / 2.0).clamp(0.1, 100.0);
    }
    for (_, cost) in costs.values() {
        debug_assert!(cost.is_finite());
    }
    let mut rows = Vec::new();
    let mut add = |name: &str, check, cpus: &[usize], known: Option<f64>| -> Result<(), Failure> {
        rows.push(Row {
            name: format!(
                "{name}, {} CPU{}",
                cpus.len(),
                if cpus.len() > 1 { "s" } else { "" }
            ),
            fitted: known.is_some(),
            real: known.map_or_else(|| real::fastest(check, cpus), Ok)?,
            model: model(check, cpus.len(), &costs)?,
        });
        Ok(())
    };
    add("pairs", Check::Pairs, &cpus[1..], Some(pairs))?;
    add("maple", Check::Maple, &cpus[1..], Some(maple))?;
    add("bulks of 64", Check::Bulk(SMALL), &cpus[1..], None)?;
    add("bulks of 512", Check::Bulk(LARGE), &cpus[1..], None)?;
    if cpus[0] != cpus[1] {
        add("pairs", Check::Pairs, &cpus, None)?;
        add("maple", Check::Maple, &cpus, None)?;
        add("bulks of 64", Check::Bulk(SMALL), &cpus, None)?;
        add("bulks of 512", Check::Bulk(LARGE), &cpus, None)?;
        add("producer and consumer", Check::Flow, &cpus, None)?;
    }
    Ok(Calibration { costs, rows })
}
