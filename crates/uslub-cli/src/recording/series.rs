//! A recording in bounded memory: its first, highest and last look, and one look for each slice of
//! its time.
//!
//! The look of a slice is the one with the most resident memory, so a short peak is not lost. The
//! file is read twice: first to find these looks, then to keep them.

use super::file::{Error, Start};
use super::look::{Cache, Row};
use super::reader::Reader;
use std::collections::BTreeMap;
use std::path::Path;

/// Slices of the time; a chart has so many points.
const SLICES: usize = 240;

/// One look that is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// Milliseconds from the first look.
    pub at: u64,
    /// Resident bytes by what they hold.
    pub parts: [u64; 8],
    /// The rows of the caches that existed, by number.
    pub rows: Vec<Row>,
}

impl Moment {
    fn of<R: std::io::Read>(reader: &Reader<R>) -> Self {
        Moment {
            at: reader.time(),
            parts: reader.parts(),
            rows: reader.rows().to_vec(),
        }
    }

    /// Resident bytes.
    pub fn resident(&self) -> u64 {
        sum(self.parts)
    }

    /// The row of a cache; zeros before it exists.
    pub fn row(&self, number: usize) -> Row {
        self.rows.get(number).copied().unwrap_or_default()
    }
}

fn sum(parts: [u64; 8]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// A recording.
#[derive(Debug)]
pub struct Series {
    /// What is recorded.
    pub start: Start,
    /// Why it ended; absent if the recorder was killed or still works.
    pub end: Option<String>,
    /// Why the rest of the file is missing.
    pub damage: Option<String>,
    /// Looks in the file.
    pub looks: u64,
    /// The caches, by number.
    pub caches: Vec<Cache>,
    /// The largest slab memory of each cache, by number.
    pub peaks: Vec<u64>,
    /// The first look.
    pub first: Moment,
    /// The look with the most resident memory.
    pub peak: Moment,
    /// The last look.
    pub last: Moment,
    /// One look for each slice of the time that has one.
    pub slices: Vec<Moment>,
}

/// What the first reading finds.
#[derive(Default)]
struct Found {
    /// Time and resident bytes of each look.
    looks: Vec<(u64, u64)>,
    peaks: Vec<u64>,
    end: Option<String>,
    damage: Option<String>,
}

impl Series {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// If it is no recording, or has no look. A file that is damaged or ends early is read up to
    /// there.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut reader = Reader::open(path)?;
        let mut found = Found::default();
        loop {
            match reader.advance() {
                Ok(true) => found.add(&reader),
                Ok(false) => break,
                Err(error) => {
                    found.damage = Some(error.to_string());
                    break;
                }
            }
        }
        found.end = reader.end().map(str::to_owned);
        Self::keep(Reader::open(path)?, found)
    }

    /// Keeps the looks that matter.
    fn keep<R: std::io::Read>(mut reader: Reader<R>, found: Found) -> Result<Self, Error> {
        let peak = found.highest(0..found.looks.len());
        let slices = found.slices();
        let mut kept = BTreeMap::new();
        for number in 0..found.looks.len() {
            // The file may have changed between the two readings.
            if !reader.advance()? {
                return Err(Error::Short(0));
            }
            let is_end = number == 0 || number + 1 == found.looks.len();
            if is_end || Some(number) == peak || slices.binary_search(&number).is_ok() {
                kept.insert(number, Moment::of(&reader));
            }
        }
        let moment = |number: Option<usize>| {
            let moment = number.and_then(|number| kept.get(&number));
            moment.cloned().unwrap_or_default()
        };
        Ok(Series {
            start: reader.start().clone(),
            end: found.end,
            damage: found.damage,
            looks: found.looks.len() as u64,
            caches: reader.caches().to_vec(),
            first: moment(Some(0)),
            peak: moment(peak),
            last: moment(found.looks.len().checked_sub(1)),
            slices: slices.iter().map(|&number| moment(Some(number))).collect(),
            peaks: found.peaks,
        })
    }

    /// The look at a time: the last one that is not later. `None` before the first look.
    ///
    /// # Errors
    ///
    /// If the file is damaged before that time.
    pub fn moment_at(path: &Path, at: u64) -> Result<Option<(Moment, Vec<Cache>)>, Error> {
        let mut reader = Reader::open(path)?;
        let mut found = None;
        while reader.advance()? && reader.time() <= at {
            found = Some((Moment::of(&reader), reader.caches().to_vec()));
        }
        Ok(found)
    }

    /// The length in milliseconds.
    pub fn duration(&self) -> u64 {
        self.last.at
    }

    /// Numbers of the caches, the one with the largest peak first.
    pub fn by_peak(&self) -> Vec<usize> {
        let mut numbers: Vec<_> = (0..self.caches.len()).collect();
        numbers.sort_by_key(|&n| std::cmp::Reverse(self.peaks.get(n).copied().unwrap_or(0)));
        numbers
    }
}

impl Found {
    fn add<R: std::io::Read>(&mut self, reader: &Reader<R>) {
        self.looks.push((reader.time(), sum(reader.parts())));
        self.peaks.resize(reader.rows().len(), 0);
        for &number in reader.changed() {
            let peak = &mut self.peaks[number as usize];
            *peak = (*peak).max(reader.rows()[number as usize].memory);
        }
    }

    /// The first look with the most resident memory among these.
    fn highest(&self, looks: std::ops::Range<usize>) -> Option<usize> {
        looks.rev().max_by_key(|&look| self.looks[look].1)
    }

    /// The highest look of each slice.
    fn slices(&self) -> Vec<usize> {
        let duration = self.looks.last().map_or(0, |look| look.0);
        let slice = |look: &(u64, u64)| slice_of(look.0, duration);
        let (mut slices, mut begin) = (Vec::new(), 0);
        for looks in self.looks.chunk_by(|a, b| slice(a) == slice(b)) {
            slices.extend(self.highest(begin..begin + looks.len()));
            begin += looks.len();
        }
        slices
    }
}

/// The slice that a time is in.
fn slice_of(at: u64, duration: u64) -> usize {
    let slices = SLICES as u128;
    let slice = u128::from(at) * slices / u128::from(duration.max(1));
    slice.min(slices - 1) as usize
}
