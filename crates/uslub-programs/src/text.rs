//! Generates input that is the same on every machine and in every run, for the program tests.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

/// A xorshift generator; its numbers depend only on the seed.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A generator with this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number, below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const SYLLABLES: [&str; 16] = [
    "slab", "sheaf", "barn", "node", "page", "ob", "ject", "ra", "lo", "ti", "ne", "mu", "ka",
    "ve", "so", "pi",
];

/// A word of one to five syllables.
pub fn word(numbers: &mut Numbers) -> String {
    let syllables = 1 + numbers.below(5);
    (0..syllables)
        .map(|_| SYLLABLES[numbers.below(16) as usize])
        .collect()
}

/// Writes `count` lines to `path`: a number below `bound`, then one to four words.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_lines(path: &Path, count: u64, bound: u64) -> Result<()> {
    let mut numbers = Numbers::from_seed(count);
    let mut file = BufWriter::new(File::create(path)?);
    for _ in 0..count {
        write!(file, "{}", numbers.below(bound))?;
        for _ in 0..=numbers.below(4) {
            write!(file, " {}", word(&mut numbers))?;
        }
        writeln!(file)?;
    }
    file.flush()
}
