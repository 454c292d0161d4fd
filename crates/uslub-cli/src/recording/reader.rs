//! Reads the file of a recording look by look.
//!
//! Nothing that is read is trusted: lengths are bounded, sums wrap, and numbers of caches are
//! checked. What stands before the damage can be used.

use super::file::{Block, CACHES_MAX, Change, Error, MAGIC, PAYLOAD_MAX, Start, VERSION};
use super::look::{Cache, Row};
use crate::destination;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Most looks that are read: one a second for 11 days.
const LOOKS_MAX: u64 = 1_000_000;
/// Longest name that is kept, in bytes.
const NAME_MAX: usize = 256;

/// Reads a recording look by look.
pub struct Reader<R> {
    from: R,
    at: u64,
    start: Start,
    caches: Vec<Cache>,
    rows: Vec<Row>,
    time: u64,
    parts: [u64; 8],
    changed: Vec<u32>,
    looks: u64,
    end: Option<String>,
}

impl Reader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is no recording.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if let Some(kind) = destination::kind(path) {
            return Err(io::Error::other(format!("it is {kind}")).into());
        }
        Reader::new(BufReader::new(File::open(path)?))
    }
}

impl<R: Read> Reader<R> {
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// If it is no recording.
    pub fn new(mut from: R) -> Result<Self, Error> {
        let mut head = [0; 12];
        let length = fill(&mut from, &mut head)?;
        if length < 8 || head[..8] != *MAGIC {
            return Err(Error::Other);
        }
        if length < 12 {
            return Err(Error::Short(8));
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let mut reader = Reader {
            from,
            at: 12,
            start: Start::default(),
            caches: Vec::new(),
            rows: Vec::new(),
            time: 0,
            parts: [0; 8],
            changed: Vec::new(),
            looks: 0,
            end: None,
        };
        match reader.block()? {
            Some(Block::Start(start)) => reader.start = printable(start),
            Some(_) => return Err(reader.damaged("it should be the first one")),
            None => return Err(Error::Short(12)),
        }
        Ok(reader)
    }

    /// What is recorded.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// Why the recording ended, if its end was read.
    pub fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// Milliseconds from the first look to this one.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Resident bytes by what they hold, in the order of [`PARTS`](super::look::PARTS).
    pub fn parts(&self) -> [u64; 8] {
        self.parts
    }

    /// The caches so far, by number.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// The rows of all caches, by number.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Numbers of the caches that this look changed.
    pub fn changed(&self) -> &[u32] {
        &self.changed
    }

    /// Reads the next look; false after the last one.
    ///
    /// # Errors
    ///
    /// If the file is damaged or ends early. The looks before stand.
    pub fn advance(&mut self) -> Result<bool, Error> {
        loop {
            let begin = self.at;
            let damaged = |what| Err(Error::Damaged { at: begin, what });
            match self.block()? {
                None => return Ok(false),
                Some(Block::Start(_)) => return damaged("a second beginning"),
                Some(Block::End(why)) => self.end = Some(clean(&why)),
                Some(Block::Cache(_)) if self.caches.len() >= CACHES_MAX => {
                    return damaged("too many caches");
                }
                Some(Block::Cache(cache)) => {
                    self.rows.push(Row::default());
                    self.caches.push(Cache {
                        name: clean(&cache.name),
                        face: clean(&cache.face),
                        size: cache.size,
                    });
                }
                Some(Block::Look(_)) if self.looks >= LOOKS_MAX => {
                    return damaged("too many looks");
                }
                Some(Block::Look(change)) => {
                    self.looks += 1;
                    return match self.apply(change) {
                        Ok(()) => Ok(true),
                        Err(what) => damaged(what),
                    };
                }
            }
        }
    }

    fn apply(&mut self, change: Change) -> Result<(), &'static str> {
        let time = self.time.checked_add(change.after);
        let time = time.ok_or("its time is impossible")?;
        let known = self.rows.len();
        if change.rows.iter().any(|&(n, _)| n as usize >= known) {
            return Err("it names a cache that does not exist");
        }
        self.time = time;
        self.parts = apply(self.parts, change.parts);
        self.changed.clear();
        for (number, change) in change.rows {
            let row = &mut self.rows[number as usize];
            *row = Row::of(apply(row.figures(), change));
            self.changed.push(number);
        }
        Ok(())
    }

    /// The next block; `None` at the end of the file.
    fn block(&mut self) -> Result<Option<Block>, Error> {
        let mut head = [0; 8];
        match fill(&mut self.from, &mut head)? {
            0 => return Ok(None),
            8 => {}
            _ => return Err(Error::Short(self.at)),
        }
        let [a, b, c, d, crc @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > PAYLOAD_MAX {
            return Err(self.damaged("its length is impossible"));
        }
        let mut payload = vec![0; length as usize];
        if fill(&mut self.from, &mut payload)? < payload.len() {
            return Err(Error::Short(self.at));
        }
        if crc32fast::hash(&payload) != u32::from_le_bytes(crc) {
            return Err(self.damaged("its checksum differs"));
        }
        match postcard::take_from_bytes(&payload) {
            Ok((block, [])) => {
                self.at += 8 + u64::from(length);
                Ok(Some(block))
            }
            _ => Err(self.damaged("its content makes no sense")),
        }
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { at: self.at, what }
    }
}

/// A text of the file for people: no control characters, and not too long.
fn clean(text: &str) -> String {
    let end = text.floor_char_boundary(NAME_MAX);
    uslub_inspect::root::printable(&text.as_bytes()[..end])
}

fn printable(start: Start) -> Start {
    Start {
        program: clean(&start.program),
        version: clean(&start.version),
        ..start
    }
}

/// Reads until `to` is full or the input ends; returns the bytes.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match from.read(&mut to[done..]) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Applies differences.
fn apply<const N: usize>(before: [u64; N], change: [i64; N]) -> [u64; N] {
    std::array::from_fn(|i| before[i].wrapping_add(change[i] as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::file::Writer;
    use crate::recording::look::Look;
    use crate::recording::series::Series;
    use crate::recording::{page, replay};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A look with some of six caches.
    fn looks() -> impl Strategy<Value = Vec<Look>> {
        let row = any::<[u64; 6]>().prop_map(Row::of);
        let rows = prop::collection::btree_map(0..6_u64, row, 0..6);
        let look = (0..5000_u64, any::<[u64; 8]>(), rows);
        prop::collection::vec(look, 1..12).prop_map(|all| {
            let mut time = 0;
            let look = |(after, parts, rows): (u64, [u64; 8], BTreeMap<u64, Row>)| {
                time += after;
                let cache = |n: u64| Cache {
                    name: format!("cache {n}"),
                    face: "malloc".to_owned(),
                    size: 8 * n,
                };
                Look {
                    at: time,
                    parts,
                    rows: rows.into_iter().map(|(n, row)| (cache(n), row)).collect(),
                }
            };
            all.into_iter().map(look).collect()
        })
    }

    fn written(looks: &[Look]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let start = Start {
            pid: 4711,
            program: "server".to_owned(),
            ..Start::default()
        };
        let mut writer = Writer::new(&mut bytes, &start).unwrap();
        looks.iter().for_each(|look| writer.look(look).unwrap());
        writer.end("the time was over").unwrap();
        assert_eq!(writer.bytes(), bytes.len() as u64);
        bytes
    }

    /// All looks up to the end or the damage.
    fn read(bytes: &[u8]) -> (Vec<Look>, Option<Error>) {
        let mut reader = match Reader::new(bytes) {
            Ok(reader) => reader,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let mut all = Vec::new();
        loop {
            match reader.advance() {
                Ok(true) => {
                    let rows = reader.caches().iter().cloned().zip(reader.rows().to_vec());
                    all.push(Look {
                        at: reader.time(),
                        parts: reader.parts(),
                        rows: rows.filter(|(_, row)| *row != Row::default()).collect(),
                    });
                }
                Ok(false) => {
                    assert_eq!(reader.end(), Some("the time was over"));
                    return (all, None);
                }
                Err(error) => return (all, Some(error)),
            }
        }
    }

    /// The looks without rows of zeros, as the file keeps them. Time counts from the first look.
    fn kept(looks: &[Look]) -> Vec<Look> {
        let keep = |look: &Look| {
            let mut look = look.clone();
            look.rows.retain(|_, row| *row != Row::default());
            look
        };
        looks.iter().map(keep).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(looks in looks()) {
            let (all, error) = read(&written(&looks));
            prop_assert!(error.is_none(), "{error:?}");
            prop_assert_eq!(all, kept(&looks));
        }

        #[test]
        fn a_truncated_file_keeps_its_whole_looks(looks in looks(), cut in any::<prop::sample::Index>()) {
            let bytes = written(&looks);
            let cut = cut.index(bytes.len());
            let mut reader = match Reader::new(&bytes[..cut]) {
                Ok(reader) => reader,
                Err(error) => {
                    let text = error.to_string();
                    prop_assert!(text.contains("ends early") || text.contains("no recording"), "{text}");
                    return Ok(());
                }
            };
            let (all, expected) = (kept(&looks), read(&bytes).0);
            prop_assert_eq!(&all, &expected);
            let mut number = 0;
            loop {
                match reader.advance() {
                    Ok(true) => {
                        prop_assert_eq!(reader.parts(), all[number].parts);
                        number += 1;
                    }
                    // At the border of two blocks nothing is missing but the end.
                    Ok(false) => { prop_assert!(reader.end().is_none()); break; }
                    Err(error) => { prop_assert!(matches!(error, Error::Short(_)), "{error}"); break; }
                }
            }
        }

        #[test]
        fn damage_is_named_and_never_a_panic(
            looks in looks(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..8),
        ) {
            let mut bytes = written(&looks);
            for (at, flip) in damage {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            let good = written(&looks);
            let (all, error) = read(&bytes);
            // Flips may cancel each other.
            prop_assert!(error.is_some() || bytes == good);
            prop_assert_eq!(&all[..], &kept(&looks)[..all.len()], "the looks before stand");
        }

        #[test]
        fn any_payload_with_a_right_checksum_is_read_or_refused(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20),
        ) {
            let mut bytes = written(&[]);
            for payload in payloads {
                bytes.extend((payload.len() as u32).to_le_bytes());
                bytes.extend(crc32fast::hash(&payload).to_le_bytes());
                bytes.extend(payload);
            }
            let mut reader = Reader::new(&bytes[..]).unwrap();
            while let Ok(true) = reader.advance() {
                prop_assert!(reader.changed().iter().all(|&n| (n as usize) < reader.caches().len()));
            }
        }
    }

    proptest! {
        // Each case makes a page.
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_figures_can_be_shown(looks in looks(), since in any::<u64>()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("f");
            let start = Start {
                since,
                ..Start::default()
            };
            let mut writer = Writer::new(File::create(&path).unwrap(), &start).unwrap();
            looks.iter().for_each(|look| writer.look(look).unwrap());
            let series = Series::read(&path).unwrap();
            prop_assert_eq!(series.looks, looks.len() as u64);
            let at = looks[looks.len() / 2].at;
            let (moment, caches) = Series::moment_at(&path, at).unwrap().unwrap();
            prop_assert_eq!(moment.at, at);
            prop_assert!(series.peak.resident() >= moment.resident());
            prop_assert!(replay::text(&series, true).contains("over time"));
            prop_assert!(replay::look(&series, &moment, &caches, true).contains("resident"));
            let html = page::html(&series);
            prop_assert!(!html.contains("NaN") && !html.contains("inf "));
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let why = |bytes: &[u8]| read(bytes).1.unwrap().to_string();
        assert!(why(b"").contains("does not begin with 'uslubrec'"));
        assert!(why(b"\x7fELF and more bytes").contains("no recording of uslub"));
        let mut bytes = written(&[]);
        bytes[8] = 9;
        assert!(why(&bytes).contains("version 9; this command reads version 1"));
        let mut long = written(&[])[..12].to_vec();
        long.extend([0xff; 8]);
        assert_eq!(
            why(&long),
            "the block at byte 12 is damaged: its length is impossible"
        );
    }

    #[test]
    fn an_unchanged_look_is_small() {
        let row = Row::of([100; 6]);
        let cache = |n: u64| Cache {
            name: format!("kmalloc-{n}"),
            face: "malloc".to_owned(),
            size: n,
        };
        let look = |at| Look {
            at,
            parts: [1 << 20; 8],
            rows: (0..50).map(|n| (cache(n), row)).collect(),
        };
        let one = written(&[look(0)]).len();
        let many = written(&(0..101).map(|n| look(n * 1000)).collect::<Vec<_>>()).len();
        assert!((many - one) / 100 <= 24, "{one} {many}");
    }
}
