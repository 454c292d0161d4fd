//! The goal of a row: conditions on its figures, and whether they are met.

use crate::measure::Sample;

/// Two times whose ratio differs from 1 by at most this share are a tie.
pub const TIE: f64 = 0.03;

/// Conditions, each with its result.
#[derive(Clone, Debug, Default)]
pub struct Goal(Vec<(String, bool)>);

impl Goal {
    /// No condition: the row is only for information.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn and(mut self, text: impl Into<String>, met: bool) -> Self {
        self.0.push((text.into(), met));
        self
    }

    /// The new time is at least `per_cent` (a negative number) below the old time.
    pub fn cut(self, old: Sample, new: Sample, per_cent: f64) -> Self {
        let met = change(old.median, new.median).is_some_and(|c| c <= per_cent);
        self.and(format!("{} %", signed(per_cent)), met)
    }

    /// The new time is at most the old time, or a tie.
    pub fn no_dearer(self, old: Sample, new: Sample) -> Self {
        let met = new.median <= old.median * (1.0 + TIE);
        self.and(format!("no dearer (±{:.0} % is a tie)", TIE * 100.0), met)
    }

    /// The median over the rounds of the ratio new to old is at most 1, or a tie. Both times of a
    /// ratio are of the same round.
    pub fn no_dearer_by_rounds(self, ratios: Sample) -> Self {
        let text = format!("no dearer (±{:.0} % is a tie)", TIE * 100.0);
        self.and(text, ratios.median <= 1.0 + TIE)
    }

    /// The median over the rounds of the ratio new to old is below 1.
    pub fn ahead_by_rounds(self, ratios: Sample) -> Self {
        self.and("ahead", ratios.median < 1.0)
    }

    /// The new value is at most `limit`.
    pub fn at_most(self, new: Sample, limit: f64, unit: &str) -> Self {
        self.and(format!("≤ {limit} {unit}"), new.median <= limit)
    }

    /// The new value is at least `limit`.
    pub fn at_least(self, new: Sample, limit: f64, unit: &str) -> Self {
        self.and(format!("≥ {limit} {unit}"), new.median >= limit)
    }

    /// The new time is below the time of the kernel's own code.
    pub fn below_kernel(self, new: Sample, kernel: f64) -> Self {
        self.and(
            format!("below the kernel's {kernel} ns"),
            new.median < kernel,
        )
    }

    /// All conditions in words.
    pub fn text(&self) -> String {
        join(self.0.iter())
    }

    /// Whether all are met; `None` without any.
    pub fn met(&self) -> Option<bool> {
        (!self.0.is_empty()).then(|| self.0.iter().all(|(_, met)| *met))
    }

    /// The missed conditions in words.
    pub fn missed(&self) -> String {
        join(self.0.iter().filter(|(_, met)| !met))
    }
}

fn join<'a>(conditions: impl Iterator<Item = &'a (String, bool)>) -> String {
    let texts: Vec<_> = conditions.map(|(text, _)| text.as_str()).collect();
    texts.join("; ")
}

/// The change from old to new in per cent; `None` if the old value is 0.
pub fn change(old: f64, new: f64) -> Option<f64> {
    (old != 0.0).then(|| (new / old - 1.0) * 100.0)
}

/// A number with its sign; a negative number gets a true minus sign.
pub fn signed(value: f64) -> String {
    let text = format!("{:+.1}", value);
    text.trim_end_matches(".0").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(median: f64) -> Sample {
        Sample::of(vec![median])
    }

    #[test]
    fn conditions_are_judged_one_by_one() {
        let (old, new) = (sample(10.0), sample(6.0));
        let goal = Goal::none()
            .cut(old, new, -31.9)
            .at_most(new, 1.5, "ns")
            .no_dearer(old, new);
        assert_eq!(goal.met(), Some(false));
        assert_eq!(goal.text(), "−31.9 %; ≤ 1.5 ns; no dearer (±3 % is a tie)");
        assert_eq!(goal.missed(), "≤ 1.5 ns");
        assert_eq!(Goal::none().met(), None);
        assert!(
            Goal::none()
                .no_dearer(sample(1.0), sample(1.02))
                .met()
                .unwrap()
        );
    }

    #[test]
    fn changes_have_their_sign() {
        assert_eq!(change(4.0, 3.0), Some(-25.0));
        assert_eq!(change(0.0, 3.0), None);
        assert_eq!(signed(-25.0), "−25");
        assert_eq!(signed(77.34), "+77.3");
    }
}
