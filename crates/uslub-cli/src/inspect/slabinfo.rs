//! The kernel's columns: `/proc/slabinfo`, version 2.1.

use super::target::Target;
use crate::failure::Failure;
use std::fmt::Write;

/// The two lines above the rows.
const HEADER: &str = "\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
: tunables <limit> <batchcount> <sharedfactor> \
: slabdata <active_slabs> <num_slabs> <sharedavail>
";

/// The output for a target: as in the kernel, objects in sheaves count as active.
pub fn text(target: &Target) -> Result<String, Failure> {
    let mut out = HEADER.to_owned();
    for (_, snapshot) in target.looks()? {
        for row in snapshot.rows.iter().filter(|row| row.slots > 0) {
            // A blank in a name would start another column.
            let name = row.cache.name.replace(char::is_whitespace, "_");
            let _ = writeln!(
                out,
                "{name:<17} {:6} {:6} {:6} {:4} {:4} : tunables {:4} {:4} {:4} : slabdata {:6} \
                 {:6} {:6}",
                row.inuse.unwrap_or(0),
                row.slots,
                row.cache.size,
                row.cache.objects,
                row.cache.slab_pages(),
                0,
                0,
                0,
                row.active_slabs.unwrap_or(0),
                row.slabs,
                0
            );
        }
    }
    Ok(out)
}
