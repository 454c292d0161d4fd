//! Which caches grew without pause: the first suspects for a leak.
//!
//! A program that leaks objects of a cache shows it as a live count that only rises. A working set
//! rises and falls. Kendall's τ tells them apart: it compares each pair of samples, and is 1 if the
//! later one is always larger.

use super::series::Series;

/// Samples of a recording that are compared, at most: 2,016 pairs.
const SAMPLES: usize = 64;
/// Samples without which nothing is said.
const SAMPLES_MIN: usize = 8;
/// τ from which on a cache grew without pause: nine of ten pairs rise.
const TAU_MIN: f64 = 0.8;
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
    /// Steps between two samples in which the live count rose, and all steps.
    pub rose: (usize, usize),
}

/// The caches that grew without pause, the one that grew most first.
pub fn grown(series: &Series) -> Vec<Grown> {
    let slices = &series.slices;
    let samples = slices.len().min(SAMPLES);
    if samples < SAMPLES_MIN {
        return Vec::new();
    }
    let places: Vec<_> = (0..samples)
        .map(|i| i * (slices.len() - 1) / (samples - 1))
        .collect();
    let of_cache = |cache| {
        let rows: Vec<_> = places.iter().map(|&i| slices[i].row(cache)).collect();
        let (first, last) = (rows[0], rows[samples - 1]);
        let bytes = last.bytes.saturating_sub(first.bytes);
        let live: Vec<_> = rows.iter().map(|row| row.live).collect();
        let is_grown =
            bytes >= BYTES_MIN && bytes >= first.bytes / SHARE_MIN && tau(&live) >= TAU_MIN;
        is_grown.then(|| Grown {
            cache,
            bytes,
            objects: last.live.saturating_sub(first.live),
            rose: (live.windows(2).filter(|w| w[0] < w[1]).count(), samples - 1),
        })
    };
    let mut all: Vec<_> = (0..series.caches.len()).filter_map(of_cache).collect();
    all.sort_by_key(|grown| std::cmp::Reverse(grown.bytes));
    all
}

/// Kendall's τ of samples over time: pairs that rise less pairs that fall, by all pairs.
fn tau(samples: &[u64]) -> f64 {
    let (mut sum, mut pairs) = (0_i64, 0_i64);
    for (i, before) in samples.iter().enumerate() {
        for later in &samples[i + 1..] {
            sum += later.cmp(before) as i64;
            pairs += 1;
        }
    }
    sum as f64 / pairs.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::file::Start;
    use crate::recording::look::{Cache, Row};
    use crate::recording::series::Moment;

    #[test]
    fn tau_tells_a_leak_from_a_working_set() {
        assert_eq!(tau(&[1, 2, 3, 9]), 1.0);
        assert_eq!(tau(&[9, 3, 2, 1]), -1.0);
        assert_eq!(tau(&[5, 5, 5]), 0.0);
        assert!(tau(&[1, 5, 2, 6, 1, 5, 2, 6]).abs() < 0.5);
        assert_eq!(tau(&[7]), 0.0);
    }

    #[test]
    fn only_the_cache_that_rises_is_named() {
        let counts: [fn(u64) -> u64; 4] = [
            |t| 1000 + 100 * t,
            |t| 90_000 + 20_000 * (t % 2),
            |_| 50_000,
            |t| 10 + t,
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
            caches: ["leak", "waves", "flat", "small"].map(cache).to_vec(),
            peaks: vec![0; 4],
            first: slices[0].clone(),
            peak: slices[99].clone(),
            last: slices[99].clone(),
            slices,
        };
        let all = grown(&series);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].cache, all[0].objects), (0, 9900));
        assert_eq!((all[0].bytes, all[0].rose), (990_000, (63, 63)));
        series.slices.truncate(5);
        assert!(grown(&series).is_empty(), "too short");
    }
}
