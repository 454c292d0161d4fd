//! The table of caches, in the columns of `/proc/slabinfo`, version 2.1. Any thread may ask for it.

use core::ffi::c_int;
use core::fmt::Write;

use uslub_core::percpu::{CacheId, MAX_CACHES};
use uslub_linux::{Text, sys};

use crate::cache::Core;
use crate::stats::written;
use crate::{ALLOCATOR, start};

type Line = Text<256>;

const HEADER: &str = "\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
: tunables <limit> <batchcount> <sharedfactor> \
: slabdata <active_slabs> <num_slabs> <sharedavail>
";

/// A cache's line. SLUB has no limit, batchcount, sharedfactor or sharedavail: they are 0.
fn row(cache: &Core) -> Line {
    let info = ALLOCATOR.info(cache);
    let mut name = Text::<64>::new();
    for byte in cache.name().bytes() {
        // A blank in a name would add a column.
        name.push(&[if byte <= b' ' || byte == 127 {
            b'_'
        } else {
            byte
        }]);
    }
    let mut line = Line::new();
    let _ = writeln!(
        line,
        "{:<17} {:6} {:6} {:6} {:4} {:4} : tunables {:4} {:4} {:4} : slabdata {:6} {:6} {:6}",
        core::str::from_utf8(name.as_bytes()).unwrap_or("?"),
        info.active_objs,
        info.num_objs,
        cache.size,
        cache.geometry.objects,
        cache.geometry.pages(),
        0,
        0,
        0,
        info.active_slabs,
        info.num_slabs,
        0
    );
    line
}

/// Writes a line for each cache to a file descriptor, in the columns of /proc/slabinfo, version
/// 2.1. The classes of kmalloc are caches too. Returns 0. Returns -1 with EIO if a write failed.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_slabinfo(fd: c_int) -> c_int {
    let mut good = sys::write_all(fd, HEADER.as_bytes());
    if start::ready() {
        for index in 1..MAX_CACHES {
            // Written after `look_at`: no other thread waits for the write.
            if let Some(line) = ALLOCATOR.look_at(CacheId::from_index(index), row) {
                good &= sys::write_all(fd, line.as_bytes());
            }
        }
    }
    written(good)
}
