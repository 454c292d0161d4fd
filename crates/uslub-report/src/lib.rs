//! The report of a process on uslub at its end: its format.
//!
//! The allocator inside the process writes one JSON object: the fields of a [`Process`], and
//! `caches`, an array of [`CacheRow`]. docs/report.md is the schema for users. The command `uslub`
//! reads the file. This crate does not allocate and has no dependencies, so the writer may run
//! inside an allocator. The reader passes the same lists of fields ([`records!`]) to a library of
//! its choice.

#![no_std]

pub mod openmetrics;
pub mod witness;

use core::fmt::{self, Write};

/// Version of the format. A reader refuses any other version.
pub const VERSION: u32 = 2;

/// Name of the environment variable with the place for reports: a folder or a file. Each process
/// writes `<pid>.json` into the folder at its end, or replaces the file.
pub const REPORT_VARIABLE: &str = "USLUB_REPORT";

/// Name of the environment variable with the tunables: `key=value` pairs, separated by commas.
pub const OPTIONS_VARIABLE: &str = "USLUB_OPTIONS";

/// Name of the environment variable that, if it is `0`, lets children run without uslub.
pub const FOLLOW_VARIABLE: &str = "USLUB_FOLLOW";

/// Name of the environment variable with the path of a [witness]'s page. It allows the helper
/// thread, which starts when much memory is empty.
pub const HELPER_VARIABLE: &str = "USLUB_HELPER";

/// Name of the environment variable with the folder for reports about debugged caches. Each process
/// appends to `<pid>.trace`, whose reader names the addresses. Only `uslub run` sets it.
pub const TRACES_VARIABLE: &str = "USLUB_TRACES";

/// Passes the records to a macro: `$define! { struct … { field: type, … } … }`. The type of a field
/// is `u32`, `u64` or `&'a str`.
#[macro_export]
macro_rules! records {
    ($define:ident) => {
        $define! {
            /// The process as a whole. All sizes are in bytes.
            pub struct Process {
                /// Format version.
                pub version: u32,
                /// Process id.
                pub pid: u32,
                /// Id of the process that started it; 0 if unknown.
                pub parent_pid: u32,
                /// How it began: `exec`, or `fork` if it runs the program of its parent.
                pub birth: &'a str,
                /// Name of the program: the end of its first argument. Bytes that are not ASCII are
                /// written as `?`.
                pub program: &'a str,
                /// 1 if the program has a malloc of its own, which takes the calls; otherwise 0.
                pub own_malloc: u32,
                /// How per-CPU sheaves are reached: `rseq mm_cid`, `rseq cpu_id` or `try-lock`.
                pub mode: &'a str,
                /// Resident bytes of the whole process now.
                pub rss_bytes: u64,
                /// Most resident bytes of the whole process so far.
                pub peak_rss_bytes: u64,
                /// Bytes in objects that the program holds (slots, page runs and mappings).
                pub live_bytes: u64,
                /// Bytes in objects in sheaves.
                pub cached_bytes: u64,
                /// Bytes of free objects in slabs, including slabs without live or cached objects.
                pub free_bytes: u64,
                /// Bytes of pages in slabs.
                pub slab_bytes: u64,
                /// Bytes of large objects (whole pages).
                pub large_bytes: u64,
                /// Bytes of huge objects (mappings of their own).
                pub huge_bytes: u64,
                /// Number of large and huge objects that the program holds.
                pub large_objs: u64,
                /// Most bytes of large and huge objects at once.
                pub peak_large_bytes: u64,
                /// Bytes of free pages that stay resident for a while.
                pub dirty_bytes: u64,
                /// Bytes of the allocator's own tables in use.
                pub metadata_bytes: u64,
                /// Objects allocated since the start.
                pub allocs: u64,
                /// Objects freed since the start.
                pub frees: u64,
            }

            /// One object cache: a line of the table. A count is of objects or of slabs, as its
            /// name says.
            pub struct CacheRow {
                /// Name of the cache, for example `kmalloc-64`.
                pub name: &'a str,
                /// Objects that the program holds.
                pub live_objs: u64,
                /// Bytes of the slots of these objects.
                pub live_bytes: u64,
                /// Bytes of the objects in sheaves, which wait for the next call.
                pub cached_bytes: u64,
                /// Bytes of pages in slabs.
                pub slab_bytes: u64,
                /// Most bytes of pages in slabs at once, noted when slabs are made.
                pub peak_bytes: u64,
                /// Objects in use, including those in sheaves, as the kernel counts.
                pub active_objs: u64,
                /// Objects in all slabs.
                pub num_objs: u64,
                /// Bytes of a slot.
                pub objsize: u32,
                /// Objects in a slab.
                pub objperslab: u32,
                /// Pages of 4096 bytes in a slab.
                pub pagesperslab: u32,
                /// Slabs with at least one object in use.
                pub active_slabs: u64,
                /// Number of slabs.
                pub num_slabs: u64,
                /// Objects in sheaves.
                pub cached_objs: u64,
                /// Objects taken from sheaves.
                pub alloc_fastpath: u64,
                /// Objects taken from slabs directly.
                pub alloc_slowpath: u64,
                /// Objects put into sheaves.
                pub free_fastpath: u64,
                /// Objects freed to slabs directly.
                pub free_slowpath: u64,
                /// Slabs taken from the page layer.
                pub alloc_slab: u64,
                /// Slabs returned to the page layer.
                pub free_slab: u64,
                /// Objects moved into sheaves from slabs.
                pub sheaf_refill: u64,
                /// Objects moved out of sheaves to slabs.
                pub sheaf_flush: u64,
                /// Full sheaves taken from a barn.
                pub barn_get: u64,
                /// Requests for a full sheaf when the barn had none.
                pub barn_get_fail: u64,
                /// Full sheaves stored in a barn.
                pub barn_put: u64,
                /// Full sheaves that a barn refused.
                pub barn_put_fail: u64,
            }
        }
    };
}

/// A field's value as JSON.
trait Json {
    fn write(&self, out: &mut dyn Write) -> fmt::Result;
}

impl Json for u32 {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Json for u64 {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Json for &str {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_char('"')?;
        for c in self.chars() {
            match c {
                '"' | '\\' => write!(out, "\\{c}")?,
                c if c < ' ' => write!(out, "\\u{:04x}", c as u32)?,
                c => out.write_char(c)?,
            }
        }
        out.write_char('"')
    }
}

macro_rules! define {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name<'a> {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name<'_> {
            /// Writes the record as one line of JSON, without the end of the line.
            ///
            /// # Errors
            ///
            /// If `out` refuses text.
            pub fn write_json(&self, out: &mut dyn Write) -> fmt::Result {
                let mut before = '{';
                $(
                    write!(out, "{before}\"{}\":", stringify!($field))?;
                    self.$field.write(out)?;
                    before = ',';
                )*
                debug_assert_eq!(before, ',');
                out.write_char('}')
            }
        }
    )*};
}

records!(define);

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_record_is_one_line_of_json() {
        let row = CacheRow {
            name: "a \"b\" \\ \n",
            live_objs: 7,
            live_bytes: u64::MAX,
            ..CacheRow::default()
        };
        let mut line = std::string::String::new();
        row.write_json(&mut line).unwrap();
        assert!(line.starts_with(
            r#"{"name":"a \"b\" \\ \u000a","live_objs":7,"live_bytes":18446744073709551615,"#
        ));
        assert!(line.ends_with(r#""barn_put_fail":0}"#) && !line.contains('\n'));
    }

    macro_rules! describe {
        ($($(#[$doc:meta])* pub struct $name:ident {
            $($(#[doc = $line:literal])* pub $field:ident: $type:ty,)*
        })*) => {
            /// Name of each record; name, type and lines of each field.
            const FIELDS: &[(&str, &[(&str, &str, &[&str])])] = &[$(
                (stringify!($name), &[$((stringify!($field), stringify!($type), &[$($line),*]),)*]),
            )*];
        };
    }

    records!(describe);

    /// `docs/report.md` describes each field in a row of the section that has the record's name.
    #[test]
    fn the_schema_for_users_is_true() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.md");
        let text = std::fs::read_to_string(file).unwrap();
        for (record, fields) in FIELDS {
            let heading = std::format!("\n### {record}\n");
            let (_, section) = text
                .split_once(&*heading)
                .expect("a section for each record");
            let section = section.split("\n#").next().unwrap();
            let rows: std::vec::Vec<_> = section.lines().filter(|l| l.starts_with("| `")).collect();
            let expected = fields.iter().map(|(field, kind, lines)| {
                let lines: std::vec::Vec<_> = lines.iter().map(|line| line.trim()).collect();
                let kind = if kind.contains("str") {
                    "text"
                } else {
                    "number"
                };
                std::format!("| `{field}` | {kind} | {} |", lines.join(" "))
            });
            let expected: std::vec::Vec<_> = expected.collect();
            assert_eq!(
                rows,
                expected,
                "the rows should be:\n{}",
                expected.join("\n")
            );
        }
        let version = std::format!("version {VERSION} of the format");
        assert!(text.contains(&version), "docs/report.md says: {version}");
    }
}
