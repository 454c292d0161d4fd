//! One line of the comparison: ours beside the best of the others.

use std::collections::BTreeMap;

use serde::Serialize;

use super::face::OURS;
use crate::error::Failure;
use crate::floor::FLOOR;
use crate::goal::Goal;
use crate::measure::Sample;

/// The rounds of everybody who took part.
pub struct Rounds {
    /// Ours.
    pub ours: Vec<f64>,
    /// The others', by name.
    pub peers: Vec<(&'static str, Vec<f64>)>,
    /// The floor's, which is no allocator; empty where it was not measured.
    pub floor: Vec<f64>,
}

impl Rounds {
    /// From a list in which one is ours, and another may be the floor.
    pub fn of(all: Vec<(&'static str, Vec<f64>)>) -> Self {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        let mut peers = all;
        peers.retain_mut(|(name, rounds)| {
            match *name {
                OURS => ours.append(rounds),
                FLOOR => floor.append(rounds),
                _ => return true,
            }
            false
        });
        Self { ours, peers, floor }
    }

    /// The peer with the lowest median.
    fn best(&self) -> Option<&(&'static str, Vec<f64>)> {
        let median = |rounds: &[f64]| Sample::of(rounds.to_vec()).median;
        let peers = self.peers.iter();
        peers.min_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)))
    }

    /// Ours and that one alone.
    pub fn against(&self, name: &str) -> Self {
        self.with(|peer| peer == name)
    }

    /// All but that one.
    pub fn without(&self, name: &str) -> Self {
        self.with(|peer| peer != name)
    }

    fn with(&self, wanted: impl Fn(&str) -> bool) -> Self {
        let peers = self.peers.iter().filter(|(peer, _)| wanted(peer));
        Self {
            ours: self.ours.clone(),
            peers: peers.cloned().collect(),
            floor: self.floor.clone(),
        }
    }
}

/// What a row must show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aim {
    /// Ours to the best peer's, at most.
    pub ratio: Option<f64>,
    /// A difference of so much is a tie.
    pub tie: f64,
    /// Ours, at most.
    pub limit: Option<f64>,
}

impl Aim {
    /// Ours to the best peer's, at most.
    pub fn ratio(ratio: f64) -> Self {
        Self {
            ratio: Some(ratio),
            ..Self::default()
        }
    }

    /// Ours, at most.
    pub fn limit(limit: f64) -> Self {
        Self::default().and_limit(limit)
    }

    /// A difference of so much is a tie.
    pub fn tie(self, tie: f64) -> Self {
        Self { tie, ..self }
    }

    /// And ours at most so much.
    pub fn and_limit(self, limit: f64) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }
}

/// One line of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct PeerRow {
    /// The part that it belongs to, such as `P1`.
    pub part: &'static str,
    /// What was measured.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Ours: the median of its rounds.
    pub ours: Option<f64>,
    /// The best peer's.
    pub best: Option<f64>,
    /// Who that is.
    pub best_name: Option<&'static str>,
    /// Ours to the best: the median of the ratios of the rounds.
    pub ratio: Option<f64>,
    /// The least that such calls take, in the same rounds: the bare sequences, on stacks that are
    /// never empty.
    pub floor: Option<f64>,
    /// What must be shown, in words.
    pub goal: String,
    /// Whether it is.
    pub met: Option<bool>,
    /// The parts of the goal that are not met.
    pub missed: String,
    /// Least and greatest of our rounds.
    pub ours_spread: Option<[f64; 2]>,
    /// Least and greatest of the ratios.
    pub ratio_spread: Option<[f64; 2]>,
    /// Every peer's figure.
    pub peers: BTreeMap<&'static str, f64>,
    /// What else is to be known.
    pub note: String,
}

impl PeerRow {
    /// A measured line.
    pub fn new(
        part: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        rounds: &Rounds,
        aim: Aim,
    ) -> Self {
        let ours = Sample::of(rounds.ours.clone());
        let best = rounds.best();
        // Without a ratio where a peer needs nothing at all.
        let ratio = best.filter(|(_, best)| best.iter().all(|b| *b > 0.0));
        let ratio = ratio.map(|(_, best)| {
            let pairs = rounds.ours.iter().zip(best);
            Sample::of(pairs.map(|(a, b)| a / b).collect())
        });
        let best = best.map(|(name, rounds)| (*name, Sample::of(rounds.clone()).median));
        let mut goal = Goal::none();
        if let (Some(limit), Some((_, best)), Some(ratio)) = (aim.ratio, best, ratio) {
            let tie = match aim.tie {
                0.0 => String::new(),
                tie => format!(" ({tie} {unit} is a tie)"),
            };
            let met = ratio.median <= limit || ours.median <= best * limit + aim.tie;
            goal = goal.and(format!("≤ {limit} × the best{tie}"), met);
        }
        if let Some(limit) = aim.limit {
            goal = goal.at_most(ours, limit, unit);
        }
        Self {
            part,
            name: name.into(),
            unit,
            ours: Some(ours.median),
            best: best.map(|(_, best)| best),
            best_name: best.map(|(name, _)| name),
            ratio: ratio.map(|r| r.median),
            floor: (!rounds.floor.is_empty()).then(|| Sample::of(rounds.floor.clone()).median),
            goal: goal.text(),
            met: goal.met(),
            missed: goal.missed(),
            ours_spread: Some([ours.least, ours.greatest]),
            ratio_spread: ratio.map(|r| [r.least, r.greatest]),
            peers: (rounds.peers.iter())
                .map(|(name, rounds)| (*name, Sample::of(rounds.clone()).median))
                .collect(),
            note: String::new(),
        }
    }

    /// A line that could not be measured, with the reason.
    pub fn without(
        part: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        why: &Failure,
    ) -> Self {
        let nobody = Rounds {
            ours: Vec::new(),
            peers: Vec::new(),
            floor: Vec::new(),
        };
        Self {
            ours: None,
            ours_spread: None,
            note: why.to_string(),
            ..Self::new(part, name, unit, &nobody, Aim::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Rounds {
        Rounds::of(vec![
            ("glibc", vec![9.0, 9.0, 9.0]),
            (OURS, vec![4.0, 5.0, 6.0]),
            ("other", vec![4.0, 4.0, 6.0]),
        ])
    }

    #[test]
    fn the_best_peer_is_the_measure() {
        let row = PeerRow::new("P1", "pair", "ns", &rounds(), Aim::ratio(1.0));
        assert_eq!(
            (row.ours, row.best, row.best_name),
            (Some(5.0), Some(4.0), Some("other"))
        );
        assert_eq!((row.ratio, row.met), (Some(1.0), Some(true)));
        assert_eq!(row.peers["glibc"], 9.0);
        assert_eq!(row.goal, "≤ 1 × the best");
    }

    #[test]
    fn the_floor_is_no_peer() {
        let mut all = rounds();
        all.floor = Rounds::of(vec![(FLOOR, vec![1.0, 3.0, 2.0])]).floor;
        let row = PeerRow::new("P1", "pair", "ns", &all, Aim::ratio(1.0));
        assert_eq!(
            (row.floor, row.best, row.peers.len()),
            (Some(2.0), Some(4.0), 2)
        );
    }

    #[test]
    fn a_tie_counts_and_a_limit_stands() {
        let row = PeerRow::new("P1", "pair", "ns", &rounds(), Aim::ratio(0.9).tie(1.5));
        assert_eq!(row.met, Some(true));
        let row = PeerRow::new(
            "P1",
            "pair",
            "ns",
            &rounds(),
            Aim::ratio(0.9).tie(1.0).and_limit(4.5),
        );
        assert_eq!(
            (row.met, &*row.missed),
            (Some(false), "≤ 0.9 × the best (1 ns is a tie); ≤ 4.5 ns")
        );
    }

    #[test]
    fn one_peer_can_be_looked_at_for_itself() {
        let against = PeerRow::new("P2", "x", "ns", &rounds().against("glibc"), Aim::ratio(1.0));
        assert_eq!((against.best, against.peers.len()), (Some(9.0), 1));
        let without = PeerRow::new("P2", "x", "ns", &rounds().without("glibc"), Aim::ratio(1.0));
        assert_eq!((without.best, without.peers.len()), (Some(4.0), 1));
    }

    #[test]
    fn without_peers_only_limits_are_judged() {
        let alone = Rounds::of(vec![(OURS, vec![2.0])]);
        assert_eq!(
            PeerRow::new("P1", "x", "ns", &alone, Aim::ratio(1.0)).met,
            None
        );
        assert_eq!(
            PeerRow::new("P1", "x", "ns", &alone, Aim::limit(3.0)).met,
            Some(true)
        );
    }
}
