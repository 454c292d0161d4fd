//! `uslub sysfs`: a folder like `/sys/kernel/slab`, for the tools that read that one.
//!
//! Each cache has a folder with a file for each figure, in the kernel's form: a number, and the
//! same number for memory node 0 where the kernel has it. A tool takes an absent file for 0, so
//! figures that are unknown from outside have no file: debugging flags, constructors, counters.

use super::STATUS_HELP;
use super::target::Target;
use crate::failure::Failure;
use crate::units;
use clap::Args;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use uslub_inspect::Heap;
use uslub_inspect::snapshot::Row;

/// Options of `uslub sysfs`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct SysfsOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// The folder to make; it may exist if it is empty
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Makes the folder; says what is in it.
pub fn make(target: &Target, folder: &Path) -> Result<String, Failure> {
    let failed = |error: io::Error| {
        Failure::ours(
            format!("cannot write to the folder '{}': {error}", folder.display()),
            "name a new folder in one that you may write to",
        )
    };
    let looks = target.looks()?;
    fs::create_dir_all(folder).map_err(failed)?;
    if fs::read_dir(folder).map_err(failed)?.next().is_some() {
        return Err(Failure::ours(
            format!("the folder '{}' is not empty", folder.display()),
            "name a new folder: the kernel's tools take everything in it for a cache",
        ));
    }
    let mut names = HashSet::new();
    for (heap, look) in &looks {
        for row in look.rows.iter().filter(|row| row.slots > 0) {
            let place = folder.join(unique(&row.cache.name, &mut names));
            fs::create_dir(&place).map_err(failed)?;
            for (name, text) in files(heap, row) {
                fs::write(place.join(name), text + "\n").map_err(failed)?;
            }
        }
    }
    let n = names.len() as u64;
    Ok(format!(
        "{n} {} of {} in {}\n",
        units::plural(n, "cache", "caches"),
        target.title(),
        folder.display()
    ))
}

/// A name for a folder that is not taken yet.
fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    // As in sysfs. A name that begins with a colon stands for an alias, one with a dot is skipped.
    let mut name = name.replace('/', "!");
    if name.is_empty() || name.starts_with(['.', ':']) {
        name.insert(0, '_');
    }
    let names = (2..).map(|n| format!("{name}#{n}"));
    let mut names = std::iter::once(name.clone()).chain(names);
    let free = names.find(|name| taken.insert(name.clone()));
    free.unwrap_or(name)
}

/// The files of a cache: names and contents.
fn files(heap: &Heap<'_>, row: &Row) -> Vec<(&'static str, String)> {
    let cache = &row.cache;
    let (mut partial, mut in_partial) = (cache.ahead.iter().map(|&(_, n)| n).sum::<u64>(), 0);
    heap.for_each_slab(cache, |slab| {
        if slab.inuse < cache.objects {
            partial += 1;
            in_partial += u64::from(slab.inuse);
        }
    });
    let plain = |n: u64| n.to_string();
    // The reader sums the nodes, so there is a list for the only node or none.
    let by_node = |n: u64| match heap.nr_nodes(cache) {
        1 => format!("{n} N0={n}"),
        _ => n.to_string(),
    };
    vec![
        ("aliases", plain(u64::from(cache.users.saturating_sub(1)))),
        ("align", plain(cache.align.into())),
        ("cache_dma", plain(0)),
        ("cpu_slabs", plain(0)),
        ("object_size", plain(cache.object_size.into())),
        ("objects", by_node(row.inuse.unwrap_or(0))),
        ("objects_cached", plain(row.cached)),
        ("objects_live", plain(row.live().unwrap_or(0))),
        ("objects_partial", by_node(in_partial)),
        ("objects_total", by_node(row.slots)),
        ("objs_per_slab", plain(cache.objects.into())),
        ("order", plain(cache.order.into())),
        ("partial", by_node(partial)),
        ("reclaim_account", plain(0)),
        ("sheaf_capacity", plain(cache.capacity.0 as u64)),
        ("slab_size", plain(cache.size.into())),
        ("slabs", by_node(row.slabs)),
        ("total_objects", by_node(row.slots)),
        ("usersize", plain(cache.object_size.into())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_has_a_folder_of_its_own() {
        let mut taken = HashSet::new();
        let names = ["a", "a", "a/b", "", ".", "..", ":0000064", "a"];
        let folders = names.map(|name| unique(name, &mut taken));
        let expected = ["a", "a#2", "a!b", "_", "_.", "_..", "_:0000064", "a#3"];
        assert_eq!(folders, expected);
    }
}
