//! Rounds and medians: `bench` runs competitors in turn and summarises them by these functions.

use std::time::Instant;

use crate::error::Failure;

/// The figures of a competitor over its rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub greatest: f64,
}

impl Sample {
    /// The summary of at least one value.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (Some(&least), Some(&greatest)) = (values.first(), values.last()) else {
            return Self::default();
        };
        Self {
            median: (values[(n - 1) / 2] + values[n / 2]) / 2.0,
            least,
            greatest,
        }
    }

    /// Minimum and maximum.
    pub fn spread(self) -> [f64; 2] {
        [self.least, self.greatest]
    }

    /// The summary of the ratio new to old in each round. A disturbance of both cancels out.
    pub fn of_ratios(new: &[f64], old: &[f64]) -> Self {
        Self::of(new.iter().zip(old).map(|(new, old)| new / old).collect())
    }

    /// The summary of one part of each round's result.
    pub fn of_each<T>(rounds: &[T], part: impl Fn(&T) -> f64) -> Self {
        Self::of(rounds.iter().map(part).collect())
    }
}

/// Runs all competitors in turn: first `warm_up` rounds, then `rounds` measured rounds. Calls
/// `drawn` after each turn.
pub fn interleave<T, const N: usize>(
    rounds: usize,
    warm_up: usize,
    mut competitors: [&mut dyn FnMut() -> Result<T, Failure>; N],
    mut drawn: impl FnMut(),
) -> Result<[Vec<T>; N], Failure> {
    let mut outcomes = [const { Vec::new() }; N];
    for round in 0..warm_up + rounds {
        for (competitor, outcomes) in competitors.iter_mut().zip(&mut outcomes) {
            let outcome = competitor()?;
            if round >= warm_up {
                outcomes.push(outcome);
            }
            drawn();
        }
    }
    Ok(outcomes)
}

/// Nanoseconds that `work` takes.
pub fn nanoseconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_nanos() as f64, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_median_and_spread() {
        let odd = Sample::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.least, odd.greatest), (2.0, 1.0, 3.0));
        assert_eq!(Sample::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Sample::of(vec![]), Sample::default());
        let ratios = Sample::of_ratios(&[1.0, 20.0, 3.0], &[2.0, 10.0, 3.0]);
        assert_eq!(
            (ratios.median, ratios.least, ratios.greatest),
            (1.0, 0.5, 2.0)
        );
    }

    #[test]
    fn competitors_take_turns_and_the_warm_up_does_not_count() {
        let turns = std::cell::RefCell::new(String::new());
        let mut a = || {
            turns.borrow_mut().push('a');
            Ok(turns.borrow().len())
        };
        let mut b = || {
            turns.borrow_mut().push('b');
            Ok(turns.borrow().len())
        };
        let outcomes = interleave(2, 1, [&mut a, &mut b], || ()).unwrap();
        assert_eq!(outcomes, [vec![3, 5], vec![4, 6]]);
        assert_eq!(*turns.borrow(), "ababab");
    }
}
