//! The layout table of a heap: where the allocator's fields are, by name.

use std::collections::HashMap;

use uslub_core::layout::hash;

use crate::error::{Error, Result};

/// Bytes of a row in memory: hash, offset and width.
pub const ROW_BYTES: usize = 12;

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the structure's start.
    pub at: usize,
    /// Bytes of the field.
    pub bytes: usize,
}

impl Field {
    /// The number in a copy of the structure; 0 if the copy is too short.
    pub fn of(self, copy: &[u8]) -> u64 {
        let part = copy.get(self.at..self.at + self.bytes.min(8));
        // A walk reads some numbers of each slab, and most have one of these lengths.
        match part.unwrap_or(&[]) {
            &[a] => u64::from(a),
            &[a, b] => u64::from(u16::from_le_bytes([a, b])),
            &[a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
            &[a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            other => (other.iter().rev()).fold(0, |number, &byte| number << 8 | u64::from(byte)),
        }
    }
}

/// The rows of a heap.
#[derive(Clone, Debug)]
pub struct Layout {
    rows: HashMap<u32, Field>,
    version: String,
}

impl Layout {
    /// The layout that rows in memory describe.
    pub fn new(rows: &[u8], version: String) -> Self {
        let word =
            |row: &[u8], i: usize| u32::from_le_bytes([row[i], row[i + 1], row[i + 2], row[i + 3]]);
        let rows = rows.chunks_exact(ROW_BYTES).map(|row| {
            let field = Field {
                at: word(row, 4) as usize,
                bytes: word(row, 8) as usize,
            };
            (word(row, 0), field)
        });
        Self {
            rows: rows.collect(),
            version,
        }
    }

    /// Where a field is.
    ///
    /// # Errors
    ///
    /// If the heap's version does not describe it, or it lies beyond any structure.
    pub fn field(&self, name: &'static str) -> Result<Field> {
        const MOST: usize = 1 << 24;
        let field = self.rows.get(&hash(name)).copied();
        field
            .filter(|field| field.at < MOST && field.bytes < MOST)
            .ok_or_else(|| self.missing(name))
    }

    /// A field that is a number of this many bytes.
    ///
    /// # Errors
    ///
    /// As for [`field`](Self::field), or if it has another width.
    pub fn number(&self, name: &'static str, bytes: usize) -> Result<Field> {
        let field = self.field(name)?;
        if field.bytes == bytes {
            Ok(field)
        } else {
            Err(self.missing(name))
        }
    }

    /// The value of a constant that must lie in a range.
    ///
    /// # Errors
    ///
    /// As for [`field`](Self::field), or if the value is impossible.
    pub fn constant(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize> {
        let row = self
            .rows
            .get(&hash(name))
            .ok_or_else(|| self.missing(name))?;
        if row.bytes == 0 && range.contains(&row.at) {
            Ok(row.at)
        } else {
            Err(self.missing(name))
        }
    }

    fn missing(&self, field: &'static str) -> Error {
        Error::Field {
            version: self.version.clone(),
            field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(rows: &[(&str, u32, u32)]) -> Layout {
        let words = rows
            .iter()
            .flat_map(|&(name, at, bytes)| [hash(name), at, bytes]);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        Layout::new(&bytes, "9.9".to_owned())
    }

    #[test]
    fn a_field_that_is_missing_or_of_another_width_is_named() {
        let layout = layout(&[("A.x", 8, 4), ("N", 7, 0)]);
        assert_eq!(layout.number("A.x", 4).unwrap().of(&[1; 12]), 0x0101_0101);
        assert_eq!(layout.constant("N", 1..=9).unwrap(), 7);
        for error in [
            layout.field("A.y").unwrap_err(),
            layout.number("A.x", 8).unwrap_err(),
            layout.constant("N", 1..=6).unwrap_err(),
            layout.constant("A.x", 0..=99).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains("9.9") && text.contains("field "), "{text}");
        }
    }

    #[test]
    fn a_field_of_any_width_is_a_number() {
        let copy = [0xff, 1, 2, 3, 4, 5, 6, 7, 8, 0xff];
        for (bytes, number) in [
            (0, 0),
            (1, 0x01),
            (2, 0x0201),
            (3, 0x0003_0201),
            (4, 0x0403_0201),
            (6, 0x0605_0403_0201),
            (8, 0x0807_0605_0403_0201),
            (9, 0x0807_0605_0403_0201),
        ] {
            assert_eq!(Field { at: 1, bytes }.of(&copy), number, "{bytes}");
        }
    }

    #[test]
    fn a_field_beyond_the_copy_reads_zero() {
        let field = Field { at: 6, bytes: 4 };
        assert_eq!(field.of(&[1; 8]), 0);
    }
}
