//! `uslub slabinfo` and `uslub sysfs` for the tools that read the kernel's own.

use crate::inspected::{cache, json, number, preloaded, said, uslub};
use crate::support::text;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a program with a file or folder in the place of one of the kernel's; `None` where mounting
/// is not permitted, or the program or the place is absent.
fn in_place_of(ours: &Path, kernels: &str, program: &[&str]) -> Option<String> {
    let script = r#"mount --bind "$1" "$2" && shift 2 && exec "$@""#;
    let mounted = |program: &[&str]| {
        Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", text(ours), kernels])
            .args(program)
            .env("TERM", "dumb")
            .output()
    };
    let probe = mounted(&["true"]);
    let is_there = Command::new("sh")
        .args(["-c", &format!("command -v {}", program[0])])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success())
        || !is_there.is_ok_and(|found| found.status.success())
    {
        eprintln!(
            "skipped: no '{}', or {kernels} cannot be mounted over",
            program[0]
        );
        return None;
    }
    let output = mounted(program).expect("the program can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {error}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn slabtop_reads_the_table_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let file = folder.path().join("slabinfo");
    fs::write(&file, said(&["slabinfo", &paused.pid()])).expect("the file can be written");
    let Some(screen) = in_place_of(&file, "/proc/slabinfo", &["slabtop", "-o", "-s", "c"]) else {
        return;
    };
    let look = json(&paused.pid());
    let allocator = &look["allocators"][0];
    for name in ["kmalloc-176", "kmalloc-368", "kmalloc-1248"] {
        let row = screen.lines().find(|line| line.trim_end().ends_with(name));
        let row = row.unwrap_or_else(|| panic!("no '{name}': {screen}"));
        let columns: Vec<_> = row.split_whitespace().collect();
        let shown = |i: usize| columns[i].parse::<u64>().expect("a number");
        let cache = cache(&look, name);
        // OBJS ACTIVE USE "OBJ SIZE" SLABS OBJ/SLAB "CACHE SIZE" NAME
        assert_eq!(shown(0), number(&cache["slots"]), "{row}");
        assert_eq!(
            shown(1),
            number(&cache["live"]) + number(&cache["cached"]),
            "{row}"
        );
        assert_eq!(shown(4), number(&cache["slabs"]), "{row}");
        let kib = number(&cache["slab_bytes"]) / 1024;
        assert_eq!(columns[6], format!("{kib}K"), "{row}");
    }
    let caches = allocator["caches"].as_array().expect("caches");
    let slots: u64 = caches.iter().map(|cache| number(&cache["slots"])).sum();
    let total = screen.lines().find(|line| line.contains("Total Objects"));
    let total = total.unwrap_or_else(|| panic!("{screen}"));
    assert!(total.contains(&format!("/ {slots} ")), "{total}");
}

/// The files of a cache's folder, with their contents.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    let read = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).ok()?;
        Some((file.file_name().to_string_lossy().into_owned(), text))
    };
    files.filter_map(read).collect()
}

#[test]
fn the_folder_is_like_the_kernels() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let tree = folder.path().join("slab");
    let line = said(&["sysfs", &paused.pid(), text(&tree)]);
    assert!(line.contains("caches of preloaded "), "{line}");
    let look = json(&paused.pid());
    for name in ["kmalloc-176", "kmalloc-368", "kmalloc-1248"] {
        let (files, cache) = (files(&tree.join(name)), cache(&look, name));
        let first = |file: &str| -> u64 {
            let number = files[file].split_whitespace().next().expect("a word");
            number.parse().expect("a number")
        };
        assert_eq!(
            first("objects"),
            number(&cache["live"]) + number(&cache["cached"])
        );
        assert_eq!(first("objects_live"), number(&cache["live"]));
        assert_eq!(first("total_objects"), number(&cache["slots"]));
        assert_eq!(first("slabs"), number(&cache["slabs"]));
        assert_eq!(first("slab_size"), number(&cache["size"]));
        // Full slabs have no free slot: the free ones are all in partial slabs.
        let free = first("partial") * first("objs_per_slab") - first("objects_partial");
        assert_eq!(free, number(&cache["free"]), "{name}");
    }
    // The kernel's own folders have the same forms of files; ours has more.
    let kernels = Path::new("/sys/kernel/slab/kmalloc-64");
    if kernels.join("slabs").exists() {
        let form = |text: &str| -> String {
            let digits = text.replace(|c: char| c.is_ascii_digit(), "0");
            // As many digits as there are, as one.
            digits
                .split('0')
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("0")
        };
        let (ours, kernels) = (files(&tree.join("kmalloc-176")), files(kernels));
        for (name, text) in &ours {
            match kernels.get(name) {
                Some(_) if name == "cpu_slabs" => {}
                Some(kernels) => assert_eq!(form(text), form(kernels), "{name}"),
                None => assert!(name.starts_with("objects_"), "{name}"),
            }
        }
    } else {
        eprintln!("skipped: the kernel shows no caches");
    }

    let again = uslub(&["sysfs", &paused.pid(), text(&tree)]);
    assert_eq!(again.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
    let below_a_file = tree.join("kmalloc-176/slabs/x");
    let refused = uslub(&["sysfs", &paused.pid(), text(&below_a_file)]);
    assert_eq!(refused.status.code(), Some(125));
    let output = uslub(&["sysfs", &paused.pid()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("DIR is missing"));
}

/// The kernel's tool `slabinfo` (`tools/mm/slabinfo.c`), where somebody installed it.
#[test]
fn the_kernels_tool_reads_the_folder_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = preloaded(&folder) else {
        return;
    };
    let tree = folder.path().join("slab");
    said(&["sysfs", &paused.pid(), text(&tree)]);
    let Some(table) = in_place_of(&tree, "/sys/kernel/slab", &["slabinfo", "-l"]) else {
        return;
    };
    let look = json(&paused.pid());
    let cache = cache(&look, "kmalloc-368");
    let row = table.lines().find(|line| line.starts_with("kmalloc-368 "));
    let columns: Vec<_> = row.expect("a row").split_whitespace().collect();
    let active = number(&cache["live"]) + number(&cache["cached"]);
    // Name Objects Objsize Space Slabs/Part/Cpu O/S O %Fr %Ef Flg
    assert_eq!(columns[1], active.to_string(), "{columns:?}");
    assert_eq!(
        columns[2],
        number(&cache["object_size"]).to_string(),
        "{columns:?}"
    );
}
