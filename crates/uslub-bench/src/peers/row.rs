//! One row of the comparison: uslub against the best peer.

use std::collections::BTreeMap;

use serde::Serialize;

use super::face::OURS;
use crate::error::Failure;
use crate::floor::FLOOR;
use crate::goal::Goal;
use crate::measure::Sample;
use crate::output::{self, Cell, Figures, figure};

/// The rounds of all competitors.
pub struct Rounds {
    /// The rounds of uslub.
    pub ours: Vec<f64>,
    /// The rounds of the peers, by name.
    pub peers: Vec<(&'static str, Vec<f64>)>,
    /// The rounds of the floor, which is not an allocator; empty if it was not measured.
    pub floor: Vec<f64>,
}

impl Rounds {
    /// From a list that contains uslub, and may contain the floor.
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

    /// Only uslub and the peer `name`.
    pub fn against(&self, name: &str) -> Self {
        self.with(|peer| peer == name)
    }

    /// All competitors except the peer `name`.
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

/// The goal of a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aim {
    /// Largest ratio of uslub to the best peer.
    pub ratio: Option<f64>,
    /// Largest absolute difference that counts as a tie.
    pub tie: f64,
    /// Largest figure of uslub.
    pub limit: Option<f64>,
}

impl Aim {
    /// A goal for the ratio of uslub to the best peer: at most `ratio`.
    pub fn ratio(ratio: f64) -> Self {
        Self {
            ratio: Some(ratio),
            ..Self::default()
        }
    }

    /// A goal for the figure of uslub: at most `limit`.
    pub fn limit(limit: f64) -> Self {
        Self::default().and_limit(limit)
    }

    /// Sets the largest absolute difference that counts as a tie.
    pub fn tie(self, tie: f64) -> Self {
        Self { tie, ..self }
    }

    /// Adds a goal for the figure of uslub: at most `limit`.
    pub fn and_limit(self, limit: f64) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }
}

/// One row of the comparison.
pub type PeerRow = output::Row<Against>;

/// The figures of a row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Against {
    /// The part of the row, such as `P1`.
    pub part: &'static str,
    /// The median of uslub's rounds.
    pub ours: Option<f64>,
    /// The median of the best peer's rounds.
    pub best: Option<f64>,
    /// The name of the best peer.
    pub best_name: Option<&'static str>,
    /// The median over the rounds of the ratio uslub to best peer.
    pub ratio: Option<f64>,
    /// The floor in the same rounds: only the restartable sequences, on stacks that never run
    /// empty.
    pub floor: Option<f64>,
    /// Minimum and maximum of uslub's rounds.
    pub ours_spread: Option<[f64; 2]>,
    /// Minimum and maximum of the ratios.
    pub ratio_spread: Option<[f64; 2]>,
    /// The figure of every peer.
    pub peers: BTreeMap<&'static str, f64>,
}

impl Figures for Against {
    fn cells(&self) -> Vec<(&'static str, Cell)> {
        let best = match (self.best, self.best_name) {
            (Some(best), Some(name)) => format!("{} {name}", figure(best)),
            _ => "–".to_owned(),
        };
        let all = self.peers.iter();
        let all: Vec<_> = all
            .map(|(name, of)| format!("{name} {}", figure(*of)))
            .collect();
        vec![
            ("uslub", Cell::Figure(self.ours, self.ours_spread)),
            ("floor", Cell::Figure(self.floor, None)),
            ("best peer", Cell::Right(best)),
            ("ratio", Cell::Figure(self.ratio, self.ratio_spread)),
            ("all", Cell::PageOnly(all.join(", "))),
        ]
    }
}

impl PeerRow {
    /// A measured row.
    pub fn new(
        part: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        rounds: &Rounds,
        aim: Aim,
    ) -> Self {
        let median = |rounds: &[f64]| Sample::of(rounds.to_vec()).median;
        let ours = Sample::of(rounds.ours.clone());
        let best = rounds.best();
        // A peer with the figure 0 makes the ratio meaningless.
        let ratio = best.filter(|(_, best)| best.iter().all(|b| *b > 0.0));
        let ratio = ratio.map(|(_, best)| Sample::of_ratios(&rounds.ours, best));
        let best = best.map(|(name, rounds)| (*name, median(rounds)));
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
        let peers = rounds.peers.iter();
        let figures = Against {
            part,
            ours: Some(ours.median),
            best: best.map(|(_, best)| best),
            best_name: best.map(|(name, _)| name),
            ratio: ratio.map(|r| r.median),
            floor: (!rounds.floor.is_empty()).then(|| median(&rounds.floor)),
            ours_spread: Some(ours.spread()),
            ratio_spread: ratio.map(Sample::spread),
            peers: peers
                .map(|(name, rounds)| (*name, median(rounds)))
                .collect(),
        };
        Self::of(name, unit, figures, &goal)
    }

    /// A row that could not be measured, with the reason.
    pub fn without(
        part: &'static str,
        name: impl Into<String>,
        unit: &'static str,
        why: &Failure,
    ) -> Self {
        let figures = Against {
            part,
            ..Against::default()
        };
        Self::absent(name, unit, figures, why)
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
            (row.figures.ours, row.figures.best, row.figures.best_name),
            (Some(5.0), Some(4.0), Some("other"))
        );
        assert_eq!((row.figures.ratio, row.met), (Some(1.0), Some(true)));
        assert_eq!(row.figures.peers["glibc"], 9.0);
        assert_eq!(row.goal, "≤ 1 × the best");
    }

    #[test]
    fn the_floor_is_no_peer() {
        let mut all = rounds();
        all.floor = Rounds::of(vec![(FLOOR, vec![1.0, 3.0, 2.0])]).floor;
        let row = PeerRow::new("P1", "pair", "ns", &all, Aim::ratio(1.0));
        assert_eq!(
            (row.figures.floor, row.figures.best, row.figures.peers.len()),
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
        assert_eq!(
            (against.figures.best, against.figures.peers.len()),
            (Some(9.0), 1)
        );
        let without = PeerRow::new("P2", "x", "ns", &rounds().without("glibc"), Aim::ratio(1.0));
        assert_eq!(
            (without.figures.best, without.figures.peers.len()),
            (Some(4.0), 1)
        );
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

    #[test]
    fn a_row_without_figures_is_not_measured() {
        let why = Failure::Unavailable("jq".to_owned());
        let row = PeerRow::without("P6", "groups.jq", "s", &why);
        assert!(!row.is_measured() && row.met.is_none());
        assert_eq!(row.note, "jq is not available");
        let row = PeerRow::new("P1", "x", "ns", &rounds(), Aim::default());
        assert!(row.is_measured());
        assert_eq!(
            row.line(),
            "uslub 5.00, floor –, best peer 4.00 other, ratio 1.00"
        );
    }
}
