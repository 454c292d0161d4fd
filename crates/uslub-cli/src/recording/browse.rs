//! A recording as the looks of `uslub top`, for the terminal.

use super::file::Error;
use super::look::{Cache, Row};
use super::reader::Reader;
use crate::failure::Failure;
use crate::inspect::top::sample::{Entry, Key, Sample};
use crate::inspect::top::tape::Tape;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A recording that is read look by look. A step back reads it again from its start, so the looks
/// before take no memory.
pub struct Recorded {
    path: PathBuf,
    reader: Reader<BufReader<File>>,
    looks: u64,
}

impl Recorded {
    /// The first `looks` looks of a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn open(path: &Path, looks: u64) -> Result<Self, Error> {
        Ok(Self {
            path: path.to_owned(),
            reader: Reader::open(path)?,
            looks,
        })
    }

    fn sample(&self) -> Sample {
        let (start, parts) = (self.reader.start(), self.reader.parts());
        let [live, cached, free, kept, ..] = parts;
        let rows = self.reader.rows().iter().zip(self.reader.caches());
        let entries = rows.enumerate().filter(|(_, (row, _))| row.memory > 0);
        Sample {
            pid: start.pid,
            title: format!("{} {}", start.program, start.pid),
            at: Duration::from_millis(self.reader.time()),
            resident: parts.into_iter().fold(0, u64::saturating_add),
            live,
            cached,
            free,
            kept,
            entries: entries
                .map(|(number, (row, cache))| entry(number, row, cache))
                .collect(),
            ..Sample::default()
        }
    }
}

/// The row of a cache as `uslub top` shows it. The count of slabs is not recorded.
fn entry(number: usize, row: &Row, cache: &Cache) -> Entry {
    let slots = row.memory.checked_div(cache.size).unwrap_or(0);
    Entry {
        key: Key {
            heap: 0,
            // The index 0 stands for objects without a cache.
            index: number + 1,
            name: cache.name.clone(),
        },
        size: cache.size,
        live: row.live,
        bytes: row.bytes,
        memory: row.memory,
        cached: row.cached,
        free: slots.saturating_sub(row.live.saturating_add(row.cached)),
        slabs: None,
        calls: (row.allocs, row.frees),
        uncertain: 0,
    }
}

impl Recorded {
    fn advance(&mut self) -> Result<bool, Failure> {
        let path = &self.path;
        let advanced = self.reader.advance();
        advanced.map_err(|error| super::unreadable(path, error))
    }
}

impl Tape for Recorded {
    fn looks(&self) -> u64 {
        self.looks
    }

    fn next(&mut self) -> Result<Option<Sample>, Failure> {
        Ok(self.advance()?.then(|| self.sample()))
    }

    fn rewind(&mut self, first: u64) -> Result<(), Failure> {
        let reader = Reader::open(&self.path);
        self.reader = reader.map_err(|error| super::unreadable(&self.path, error))?;
        for _ in 0..first {
            self.advance()?;
        }
        Ok(())
    }
}
