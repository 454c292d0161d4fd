//! Which caches of a recording grew without pause: the first suspects for a leak.
//!
//! A program that leaks objects of a cache shows it as a live count that only rises. A working set
//! rises and falls. [`inspect::growth`](crate::inspect::growth) decides what counts as steady, as
//! for `uslub leaks`. A recording may be long, so a small rise in it does not count.

use super::series::Series;
use crate::inspect::growth::{self, Point};

/// Looks without which nothing is said.
const LOOKS_MIN: usize = 8;
/// Growth that counts, in bytes. A smaller leak needs a longer recording.
const BYTES_MIN: u64 = 256 << 10;
/// Growth that counts, as a share of the bytes before: one twentieth.
const SHARE_MIN: u64 = 20;

/// A cache that grew without pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grown {
    /// Number of the cache.
    pub cache: usize,
    /// Bytes of objects more than at the start.
    pub bytes: u64,
    /// Objects more than at the start.
    pub objects: u64,
    /// Steps between two looks in which the live count rose, and all steps.
    pub rose: (usize, usize),
}

/// The caches that grew without pause, the one that grew most first.
pub fn grown(series: &Series) -> Vec<Grown> {
    if series.slices.len() < LOOKS_MIN {
        return Vec::new();
    }
    let mut all: Vec<_> = (0..series.caches.len())
        .filter_map(|cache| of_cache(series, cache))
        .collect();
    all.sort_by_key(|grown| std::cmp::Reverse(grown.bytes));
    all
}

/// How a cache grew; `None` if not without pause, or by little.
fn of_cache(series: &Series, cache: usize) -> Option<Grown> {
    let mut looks = growth::Series::default();
    for moment in &series.slices {
        let row = moment.row(cache);
        looks.add(Point {
            seconds: moment.at as f64 / 1000.0,
            objects: row.live,
            bytes: row.bytes,
            unsure: 0,
        });
    }
    let growth = looks.growth()?;
    let bytes = growth.last.bytes.saturating_sub(growth.first.bytes);
    let is_much = bytes >= BYTES_MIN && bytes >= growth.first.bytes / SHARE_MIN;
    (is_much && growth.is_steady()).then(|| Grown {
        cache,
        bytes,
        objects: growth.last.objects.saturating_sub(growth.first.objects),
        rose: (growth.rose, growth.steps),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::file::Start;
    use crate::recording::look::{Cache, Row};
    use crate::recording::series::Moment;

    #[test]
    fn only_the_cache_that_rises_is_named() {
        let counts: [fn(u64) -> u64; 5] = [
            |t| 1000 + 100 * t,
            |t| 90_000 + 20_000 * (t % 2),
            |_| 50_000,
            |t| 10 + t,
            |t| 1000 + 1000 * t.min(30),
        ];
        let cache = |name: &str| Cache {
            name: name.to_owned(),
            face: "malloc".to_owned(),
            size: 100,
        };
        let row = |live: u64| Row {
            live,
            bytes: live * 100,
            memory: live * 100,
            ..Row::default()
        };
        let moment = |t: u64| Moment {
            at: t * 1000,
            parts: [0; 8],
            rows: counts.iter().map(|count| row(count(t))).collect(),
        };
        let slices: Vec<_> = (0..100).map(moment).collect();
        let mut series = Series {
            start: Start::default(),
            end: None,
            damage: None,
            looks: 100,
            caches: ["leak", "waves", "flat", "small", "filled"]
                .map(cache)
                .to_vec(),
            peaks: vec![0; 5],
            first: slices[0].clone(),
            peak: slices[99].clone(),
            last: slices[99].clone(),
            slices,
        };
        let all = grown(&series);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].cache, all[0].objects), (0, 9900));
        assert_eq!((all[0].bytes, all[0].rose), (990_000, (99, 99)));
        series.slices.truncate(5);
        assert!(grown(&series).is_empty(), "too short");
    }
}
