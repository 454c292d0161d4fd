//! The file of a recording, and its writer. docs/observing.md describes the format for others.
//!
//! ```text
//!   "uslubrec", version (u32)
//!   block: bytes of the payload (u32), CRC-32 of the payload (u32), payload      … repeated
//! ```
//!
//! All numbers are little endian. A payload is one [`Block`] in the format of `postcard`. A look
//! holds differences to the look before, so an unchanged cache costs nothing. A block is written at
//! once: what a killed recorder leaves can be read up to its last whole block.

use super::look::{Cache, Look, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// First bytes of a file.
pub const MAGIC: &[u8; 8] = b"uslubrec";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Most bytes of a payload. A look at 4,096 caches that all changed has less.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Most caches: an allocator has 2,047 identities, and few programs have two allocators.
pub const CACHES_MAX: usize = 4096;

/// One block.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub enum Block {
    /// The first block.
    Start(Start),
    /// A cache; its number is that of caches before it.
    Cache(Cache),
    /// A look, as differences to the look before.
    Look(Change),
    /// Why the recording ended.
    End(String),
}

/// What is recorded.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Start {
    /// The process.
    pub pid: i32,
    /// Its program.
    pub program: String,
    /// The version of uslub in it.
    pub version: String,
    /// When it began: seconds since 1970.
    pub since: u64,
    /// Milliseconds between looks, at first.
    pub every: u64,
}

/// Differences between two looks; sums wrap.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Change {
    /// Milliseconds since the look before.
    pub after: u64,
    /// Of the resident bytes by what they hold.
    pub parts: [i64; 8],
    /// Of the caches that changed, by number.
    pub rows: Vec<(u32, [i64; 6])>,
}

/// Why a file cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("it is no recording of uslub: it does not begin with 'uslubrec'")]
    Other,
    /// Another version.
    #[error("its format is version {0}; this command reads version {VERSION}")]
    Version(u32),
    /// The file ends within a block.
    #[error("it ends early, within the block at byte {0}")]
    Short(u64),
    /// A block that makes no sense.
    #[error("the block at byte {at} is damaged: {what}")]
    Damaged {
        /// Where it begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Writes a recording.
pub struct Writer<W> {
    out: W,
    bytes: u64,
    numbers: BTreeMap<Cache, u32>,
    last: Look,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn new(mut out: W, start: &Start) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let mut writer = Writer {
            out,
            bytes: 12,
            numbers: BTreeMap::new(),
            last: Look::default(),
        };
        writer.put(&Block::Start(start.clone()))?;
        Ok(writer)
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a look.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn look(&mut self, look: &Look) -> io::Result<()> {
        let mut rows = Vec::new();
        // A cache that is gone has a row of zeros.
        let gone = self.last.rows.keys().filter(|c| !look.rows.contains_key(c));
        let gone: Vec<_> = gone.cloned().collect();
        let zeros = gone.iter().map(|cache| (cache, Row::default()));
        for (cache, row) in look.rows.iter().map(|(c, &row)| (c, row)).chain(zeros) {
            let Some(number) = self.number(cache)? else {
                continue;
            };
            let before = self.last.rows.get(cache).copied().unwrap_or_default();
            let change = change(before.figures(), row.figures());
            if change != [0; 6] {
                rows.push((number, change));
            }
        }
        let block = Block::Look(Change {
            after: look.at.saturating_sub(self.last.at),
            parts: change(self.last.parts, look.parts),
            rows,
        });
        self.put(&block)?;
        self.last = look.clone();
        Ok(())
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn end(&mut self, why: &str) -> io::Result<()> {
        self.put(&Block::End(why.to_owned()))?;
        self.out.flush()
    }

    /// The number of a cache; writes a new cache. `None` if there are too many.
    fn number(&mut self, cache: &Cache) -> io::Result<Option<u32>> {
        if let Some(&number) = self.numbers.get(cache) {
            return Ok(Some(number));
        }
        if self.numbers.len() >= CACHES_MAX {
            return Ok(None);
        }
        self.put(&Block::Cache(cache.clone()))?;
        let number = self.numbers.len() as u32;
        self.numbers.insert(cache.clone(), number);
        Ok(Some(number))
    }

    fn put(&mut self, block: &Block) -> io::Result<()> {
        let payload = postcard::to_stdvec(block).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(payload.len() + 8);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&payload).to_le_bytes());
        bytes.extend(payload);
        self.bytes += bytes.len() as u64;
        self.out.write_all(&bytes)
    }
}

/// The differences of figures.
fn change<const N: usize>(before: [u64; N], now: [u64; N]) -> [i64; N] {
    std::array::from_fn(|i| now[i].wrapping_sub(before[i]) as i64)
}
