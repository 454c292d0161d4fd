//! Fits the costs of instructions to real runs on one CPU.

use uslub_lab::Costs;

use super::{Check, model, real};
use crate::error::Failure;

/// The loads that are fitted to. The checks are others.
const LOADS: [Check; 6] = [
    Check::Pairs,
    Check::Bulk(16),
    Check::Bulk(100),
    Check::Bulk(200),
    Check::Bulk(400),
    Check::Maple,
];
/// The costs that are fitted.
const COSTS: [&str; 4] = ["fast", "exchange", "hit", "word"];
/// The least of such a cost, in nanoseconds.
const LEAST: f64 = 0.05;
/// The change of a cost that shows its weight, in nanoseconds.
const CHANGE: f64 = 0.5;
/// Rounds of the descent; it is near its end after some ten.
const ROUNDS: usize = 200;

/// A load on one CPU, and its real time.
pub struct Known {
    /// The load.
    pub check: Check,
    /// Its time.
    pub real: real::Time,
}

/// Runs the loads for real on one CPU.
pub fn measured(cpus: &[usize]) -> Result<Vec<Known>, Failure> {
    let run = |check| {
        let real = real::fastest(check, cpus)?;
        Ok(Known { check, real })
    };
    LOADS.into_iter().map(run).collect()
}

fn cost<'a>(costs: &'a mut Costs, name: &str) -> &'a mut f64 {
    match name {
        "fast" => &mut costs.fast,
        "exchange" => &mut costs.exchange,
        "word" => &mut costs.word,
        _ => &mut costs.hit,
    }
}

/// One step: the costs with the least squares of relative deviations, as if the model were linear
/// in them. It nearly is.
pub fn step(costs: &mut Costs, known: &[Known]) -> Result<(), Failure> {
    let (mut off, mut weights) = (Vec::new(), Vec::new());
    for Known { check, real } in known {
        let at = |costs: &Costs| model(*check, real.own, 1, costs);
        let (now, calls) = (at(costs)?, real.calls());
        off.push((calls - now) / calls);
        let mut row = [0.0; COSTS.len()];
        for (weight, name) in row.iter_mut().zip(COSTS) {
            let mut other = *costs;
            *cost(&mut other, name) += CHANGE;
            *weight = (at(&other)? - now) / CHANGE / calls;
        }
        weights.push(row);
    }
    descend(costs, &weights, &mut off);
    Ok(())
}

/// Changes one cost after another, so that none falls below the least.
fn descend(costs: &mut Costs, weights: &[[f64; COSTS.len()]], off: &mut [f64]) {
    for _ in 0..ROUNDS {
        for (i, name) in COSTS.into_iter().enumerate() {
            let with: f64 = weights
                .iter()
                .zip(&*off)
                .map(|(row, off)| row[i] * off)
                .sum();
            let square: f64 = weights.iter().map(|row| row[i] * row[i]).sum();
            let cost = cost(costs, name);
            let new = (*cost + with / square.max(1e-9)).max(LEAST);
            let change = new - *cost;
            *cost = new;
            for (row, off) in weights.iter().zip(&mut *off) {
                *off -= row[i] * change;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_costs_are_found_again() {
        let wanted = [3.0, 12.0, 0.9, 0.06];
        let weights = [
            [0.3, 0.0, 0.0, 0.0],
            [0.1, 0.0, 0.8, 0.2],
            [0.02, 0.04, 0.5, 0.9],
            [0.01, 0.03, 0.6, 0.4],
            [0.05, 0.01, 1.0, 0.1],
        ];
        let mut costs = Costs::default();
        let mut off: Vec<f64> = weights
            .iter()
            .map(|row| {
                let names = COSTS.into_iter().zip(wanted).zip(row);
                let parts = names
                    .map(|((name, wanted), weight)| weight * (wanted - *cost(&mut costs, name)));
                parts.sum()
            })
            .collect();
        for _ in 0..100 {
            descend(&mut costs, &weights, &mut off);
        }
        for (name, wanted) in COSTS.into_iter().zip(wanted) {
            let found = *cost(&mut costs, name);
            assert!(
                (found / wanted - 1.0).abs() < 0.02,
                "{name}: {found}, not {wanted}"
            );
        }
    }

    #[test]
    fn no_cost_falls_below_the_least() {
        let mut costs = Costs::default();
        descend(&mut costs, &[[1.0; COSTS.len()]], &mut [-1e6]);
        for name in COSTS {
            assert_eq!(*cost(&mut costs, name), LEAST, "{name}");
        }
    }
}
