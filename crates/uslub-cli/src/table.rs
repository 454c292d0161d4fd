//! The table of caches, in the format of `/proc/slabinfo`, version 2.1. Every parser of that file
//! can read this table.

use crate::wire::CacheRow;
use std::fmt::Write;

/// The two lines above the rows.
pub const HEADER: &str = "\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
: tunables <limit> <batchcount> <sharedfactor> \
: slabdata <active_slabs> <num_slabs> <sharedavail>
";

/// The header, and a line for each cache that has objects, in the given order.
pub fn slabinfo(caches: &[CacheRow]) -> String {
    let mut text = HEADER.to_owned();
    for cache in caches.iter().filter(|c| c.num_objs > 0) {
        push_row(&mut text, cache);
    }
    text
}

/// Appends one line. SLUB has no `limit`, `batchcount`, `sharedfactor` and `sharedavail`: they are
/// 0.
fn push_row(text: &mut String, cache: &CacheRow) {
    // A blank in a name would start another column.
    let name = cache.name.replace(
        |c: char| c.is_whitespace() || uslub_inspect::root::steers(c),
        "_",
    );
    let CacheRow {
        active_objs,
        num_objs,
        objsize,
        objperslab,
        pagesperslab,
        ..
    } = cache;
    let CacheRow {
        active_slabs,
        num_slabs,
        ..
    } = cache;
    let _ = write!(
        text,
        "{name:<17} {active_objs:6} {num_objs:6} {objsize:6} {objperslab:4} {pagesperslab:4}"
    );
    let _ = write!(text, " : tunables {:4} {:4} {:4}", 0, 0, 0);
    let _ = writeln!(text, " : slabdata {active_slabs:6} {num_slabs:6} {:6}", 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str) -> CacheRow<'_> {
        CacheRow {
            name,
            active_objs: 1200,
            num_objs: 1280,
            objsize: 64,
            objperslab: 64,
            pagesperslab: 1,
            active_slabs: 19,
            num_slabs: 20,
            ..CacheRow::default()
        }
    }

    #[test]
    fn rows_are_laid_out_as_the_kernel_does() {
        let wide = CacheRow {
            active_objs: 12_345_678,
            ..cache("a-name-of-more-than-17")
        };
        assert_eq!(
            slabinfo(&[cache("kmalloc-64"), wide]),
            "slabinfo - version: 2.1\n\
             # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n\
             kmalloc-64          1200   1280     64   64    1 : tunables    0    0    0 : slabdata     19     20      0\n\
             a-name-of-more-than-17 12345678   1280     64   64    1 : tunables    0    0    0 : slabdata     19     20      0\n"
        );
    }

    #[test]
    fn caches_without_objects_are_left_out() {
        let empty = CacheRow {
            num_objs: 0,
            ..cache("kmalloc-8")
        };
        let text = slabinfo(&[empty, cache("z"), cache("a")]);
        let names: Vec<_> = text
            .lines()
            .skip(2)
            .map(|l| l.split(' ').next().unwrap())
            .collect();
        assert_eq!(names, ["z", "a"]);
    }

    #[test]
    fn a_blank_in_a_name_adds_no_column() {
        let text = slabinfo(&[cache("my objects\n")]);
        let row = text.lines().last().unwrap();
        assert!(row.starts_with("my_objects_ "));
        assert_eq!(row.split_whitespace().count(), 16);
    }
}
