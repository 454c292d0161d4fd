//! The columns of the table: title, width, order, and text of each.

use super::app::Line;
use crate::units;
use std::cmp::Ordering;

/// A column. The order here is the order on the screen; narrow terminals drop the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The cache's name.
    Cache,
    /// Live objects.
    Live,
    /// Their bytes.
    Bytes,
    /// Live bytes of the slabs' bytes.
    Use,
    /// Allocations a second.
    Allocs,
    /// Frees a second.
    Frees,
    /// Change of the live objects, a second.
    Growth,
    /// Bytes of the slabs.
    Memory,
    /// Objects in sheaves.
    Cached,
    /// Free slots in slabs.
    Free,
    /// Slabs.
    Slabs,
    /// Bytes of a slot.
    Size,
}

/// All columns.
pub const COLUMNS: [Column; 12] = [
    Column::Cache,
    Column::Live,
    Column::Bytes,
    Column::Use,
    Column::Allocs,
    Column::Frees,
    Column::Growth,
    Column::Memory,
    Column::Cached,
    Column::Free,
    Column::Slabs,
    Column::Size,
];

/// Narrowest column of names.
const NAME_MIN: usize = 14;
/// Widest column of names.
const NAME_MAX: usize = 32;

impl Column {
    /// The name on the command line and, in capitals, above the column.
    pub fn name(self) -> &'static str {
        match self {
            Column::Cache => "cache",
            Column::Live => "live",
            Column::Bytes => "bytes",
            Column::Use => "use",
            Column::Allocs => "alloc/s",
            Column::Frees => "free/s",
            Column::Growth => "growth/s",
            Column::Memory => "memory",
            Column::Cached => "cached",
            Column::Free => "free",
            Column::Slabs => "slabs",
            Column::Size => "size",
        }
    }

    /// The column with a name.
    pub fn parse(name: &str) -> Result<Self, String> {
        let mut all = COLUMNS.iter();
        all.find(|column| column.name() == name)
            .copied()
            .ok_or_else(|| {
                let names: Vec<_> = COLUMNS.iter().map(|column| column.name()).collect();
                format!("the columns are {}", names.join(", "))
            })
    }

    /// Characters of the column, without the blank in front of it.
    pub fn width(self) -> usize {
        match self {
            Column::Cache => NAME_MIN,
            Column::Live | Column::Free => 11,
            Column::Bytes | Column::Memory => 10,
            Column::Use => 7,
            Column::Growth => 9,
            Column::Allocs | Column::Frees | Column::Cached | Column::Slabs | Column::Size => 9,
        }
    }

    /// The text of a row in this column.
    pub fn text(self, line: &Line) -> String {
        let entry = &line.entry;
        match self {
            Column::Cache => entry.key.name.clone(),
            // As in `uslub info`: the number may be wrong by more than a hundredth.
            Column::Live if entry.uncertain > entry.live / 100 => {
                format!("~{}", units::count(entry.live))
            }
            Column::Live => units::count(entry.live),
            Column::Bytes => units::size(entry.bytes),
            Column::Use => units::share(entry.bytes, entry.memory).unwrap_or_else(none),
            Column::Allocs => line.allocs.map_or_else(none, rate),
            Column::Frees => line.frees.map_or_else(none, rate),
            Column::Growth => line.growth.map_or_else(none, change),
            Column::Memory => units::size(entry.memory),
            Column::Cached => units::count(entry.cached),
            Column::Free => units::count(entry.free),
            Column::Slabs => entry.slabs.map_or_else(none, units::count),
            Column::Size => match entry.size {
                0 => none(),
                size => size.to_string(),
            },
        }
    }

    /// The order of two rows: the larger number first, or names by the alphabet. Rows that are
    /// equal keep the order of their memory.
    pub fn compare(self, a: &Line, b: &Line) -> Ordering {
        let number = |key: fn(&Line) -> f64| key(b).total_cmp(&key(a));
        let order = match self {
            Column::Cache => a.entry.key.name.cmp(&b.entry.key.name),
            Column::Live => b.entry.live.cmp(&a.entry.live),
            Column::Bytes => b.entry.bytes.cmp(&a.entry.bytes),
            Column::Use => number(|line| match line.entry.memory {
                0 => -1.0,
                memory => line.entry.bytes as f64 / memory as f64,
            }),
            Column::Allocs => number(|line| line.allocs.unwrap_or(-1.0)),
            Column::Frees => number(|line| line.frees.unwrap_or(-1.0)),
            Column::Growth => number(|line| line.growth.unwrap_or(f64::MIN)),
            Column::Memory => b.entry.memory.cmp(&a.entry.memory),
            Column::Cached => b.entry.cached.cmp(&a.entry.cached),
            Column::Free => b.entry.free.cmp(&a.entry.free),
            Column::Slabs => b.entry.slabs.cmp(&a.entry.slabs),
            Column::Size => b.entry.size.cmp(&a.entry.size),
        };
        order
            .then(b.entry.memory.cmp(&a.entry.memory))
            .then(a.entry.key.cmp(&b.entry.key))
    }
}

fn none() -> String {
    "-".to_owned()
}

/// A number a second: `0`, `0.5`, `310`, `81.2 k`.
pub fn rate(number: f64) -> String {
    const UNITS: [&str; 4] = [" k", " M", " G", " T"];
    if !number.is_finite() || number < 0.0 {
        return none();
    }
    if number < 0.05 {
        return "0".to_owned();
    }
    if number < 9.95 {
        return format!("{number:.1}");
    }
    if number < 9_999.5 {
        return format!("{number:.0}");
    }
    let (mut value, mut unit) = (number / 1000.0, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

/// A change a second, with its sign.
pub fn change(number: f64) -> String {
    let text = rate(number.abs());
    match text.as_str() {
        "0" | "-" => text,
        _ if number < 0.0 => format!("-{text}"),
        _ => format!("+{text}"),
    }
}

/// The columns that a width has room for, and the width of the names. The column that rows are
/// sorted by is always among them.
pub fn fitting(width: usize, sort: Column, longest_name: usize) -> (Vec<Column>, usize) {
    let mut left = width.saturating_sub(NAME_MIN + 1);
    let sorted = match sort {
        Column::Cache => 0,
        _ => sort.width() + 1,
    };
    left = left.saturating_sub(sorted);
    let mut columns = vec![Column::Cache];
    let mut is_full = false;
    for &column in &COLUMNS[1..] {
        if column == sort {
            columns.push(column);
        } else if !is_full && left > column.width() {
            left -= column.width() + 1;
            columns.push(column);
        } else {
            is_full = true;
        }
    }
    let name = longest_name.clamp(NAME_MIN, NAME_MAX).min(NAME_MIN + left);
    (columns, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short_and_never_broken() {
        for (number, text) in [
            (0.0, "0"),
            (0.04, "0"),
            (0.5, "0.5"),
            (9.96, "10"),
            (310.4, "310"),
            (9_999.0, "9999"),
            (81_234.0, "81.2 k"),
            (999_960.0, "1.0 M"),
            (2.5e12, "2.5 T"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
            (-1.0, "-"),
        ] {
            assert_eq!(rate(number), text, "{number}");
        }
        assert_eq!(change(-81_234.0), "-81.2 k");
        assert_eq!(change(310.0), "+310");
        assert_eq!(change(-0.01), "0");
        assert!(rate(f64::MAX).len() > 4);
    }

    #[test]
    fn narrow_widths_drop_the_last_columns_but_not_the_sorted_one() {
        let (all, name) = fitting(200, Column::Memory, 40);
        assert_eq!((all.as_slice(), name), (&COLUMNS[..], NAME_MAX));
        let (few, name) = fitting(60, Column::Live, 40);
        assert_eq!(few, COLUMNS[..5]);
        assert!(name >= NAME_MIN);
        let (few, _) = fitting(60, Column::Size, 40);
        assert_eq!(few.last(), Some(&Column::Size));
        for width in 0..250 {
            let (columns, name) = fitting(width, Column::Slabs, 99);
            let rest: usize = columns[1..].iter().map(|c| c.width() + 1).sum();
            assert!(width < 40 || name + rest < width, "{width}");
        }
    }

    #[test]
    fn each_column_is_found_by_its_name() {
        for column in COLUMNS {
            assert_eq!(Column::parse(column.name()), Ok(column));
        }
        assert!(Column::parse("age").unwrap_err().contains("growth/s"));
    }
}
