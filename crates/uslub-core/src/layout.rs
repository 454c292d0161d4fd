//! Where the fields of a structure are: rows for a reader in another process.
//!
//! Each structure that a reader needs lists its fields next to its definition, with `rows!`. The
//! rows are constants: the compiler computes the offsets, and no code runs. A row names its field
//! by a hash, so 100 rows need about 1 KiB. A reader asks for a field by its name. If the row is
//! missing, or has another width, the reader says which field its version of the structure lacks.
//!
//! Callers: all layers describe, `root` joins the rows.

/// One field of a structure, or one constant.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// [`hash`] of `Structure.field`.
    pub name: u32,
    /// Bytes from the structure's start to the field; of a constant, its value.
    pub at: u32,
    /// Bytes of the field; 0 for a constant.
    pub bytes: u32,
}

impl Row {
    /// A field.
    pub const fn new(name: &str, at: usize, bytes: usize) -> Self {
        assert!(at <= u32::MAX as usize && bytes <= u32::MAX as usize);
        Self {
            name: hash(name),
            at: at as u32,
            bytes: bytes as u32,
        }
    }

    /// A constant.
    pub const fn constant(name: &str, value: usize) -> Self {
        Self::new(name, value, 0)
    }
}

/// The hash of a name (FNV-1a, 32 bits).
///
/// ```
/// use uslub_core::layout::hash;
///
/// assert_ne!(hash("Table.end"), hash("Table.nr"));
/// ```
pub const fn hash(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut sum = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        sum = (sum ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    sum
}

/// Bytes of the field that a function returns.
pub(crate) const fn bytes_of<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The rows of a structure's fields: `rows!("Table", Self, [nr, end])`.
macro_rules! rows {
    ($name:literal, $type:ty, [$($field:ident),* $(,)?]) => {
        &[$($crate::layout::Row::new(
            concat!($name, ".", stringify!($field)),
            core::mem::offset_of!($type, $field),
            $crate::layout::bytes_of(|all: &$type| &all.$field),
        )),*]
    };
}

pub(crate) use rows;

/// Number of rows in all parts together.
pub(crate) const fn count(parts: &[&[Row]]) -> usize {
    let (mut sum, mut i) = (0, 0);
    while i < parts.len() {
        sum += parts[i].len();
        i += 1;
    }
    sum
}

/// All parts one after another, then empty rows.
///
/// # Panics
///
/// If two rows have the same hash, or the parts have more than `N` rows.
pub(crate) const fn join<const N: usize>(parts: &[&[Row]]) -> [Row; N] {
    let mut all = [Row::constant("", 0); N];
    let (mut n, mut i) = (0, 0);
    while i < parts.len() {
        let mut k = 0;
        while k < parts[i].len() {
            all[n] = parts[i][k];
            n += 1;
            k += 1;
        }
        i += 1;
    }
    let mut a = 0;
    while a < n {
        let mut b = a + 1;
        while b < n {
            assert!(all[a].name != all[b].name);
            b += 1;
        }
        a += 1;
    }
    all
}
