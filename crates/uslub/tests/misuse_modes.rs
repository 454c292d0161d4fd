//! Misuse of caches, of kmalloc and of the global allocator, by default, in the hardened mode, and
//! with letters of `slab_debug`, against the table of docs/security.md.
//!
//! A child does one misuse, and says how far it came. The table says where it must end.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use uslub::{Gfp, RawCache, Uslub, kfree, kmalloc};

/// Bytes of the cache's objects, which fill their slots.
const SIZE: usize = 64;
/// Set to the name of the misuse in a child.
const CASE: &str = "USLUB_TEST_MISUSE";
/// The columns of the table.
const MODES: [(&str, &str); 7] = [
    ("default", ""),
    ("hardened", "hardened=1"),
    ("F", "slab_debug=F"),
    ("FZ", "slab_debug=FZ"),
    ("FP", "slab_debug=FP"),
    ("FZPU", "slab_debug=FZPU"),
    ("guard", "guard=10000"),
];

fn take(cache: &RawCache) -> *mut u8 {
    let object = cache.alloc(Gfp::KERNEL).expect("memory").as_ptr();
    // SAFETY: ours, and that long.
    unsafe { object.write_bytes(0x11, SIZE) };
    object
}

fn give(cache: &RawCache, object: *mut u8) {
    // SAFETY: not always safe, on purpose: this is what is tested.
    unsafe { cache.free(object) }
}

/// Frees an object, then others, then the object again.
fn double(cache: &RawCache, others: usize) {
    let object = take(cache);
    let others: Vec<_> = (0..others).map(|_| take(cache)).collect();
    give(cache, object);
    others.iter().for_each(|&other| give(cache, other));
    give(cache, object);
}

/// Writes bytes at a distance from an object's start, and frees the object.
fn write_outside(cache: &RawCache, at: isize, bytes: usize) {
    let object = take(cache);
    // SAFETY: not safe, on purpose. It is memory of the cache's slabs.
    unsafe { object.offset(at).write_bytes(0x22, bytes) };
    give(cache, object);
}

fn with_heap(work: impl FnOnce(*mut u8, Layout)) {
    let layout = Layout::from_size_align(SIZE, 8).expect("a layout");
    // SAFETY: a layout with a size.
    let object = unsafe { Uslub.alloc(layout) };
    assert!(!object.is_null());
    // SAFETY: ours, and that long.
    unsafe { object.write_bytes(0x11, SIZE) };
    work(object, layout);
}

/// Frees to the global allocator.
fn drop_heap(object: *mut u8, layout: Layout) {
    // SAFETY: not always safe, on purpose.
    unsafe { Uslub.dealloc(object, layout) }
}

type Misuse = fn(&RawCache);

const CASES: [(&str, Misuse); 14] = [
    ("double", |cache| double(cache, 0)),
    ("double-between", |cache| double(cache, 1)),
    ("double-delayed", |cache| double(cache, 40)),
    ("interior", |cache| {
        give(cache, take(cache).wrapping_add(16))
    }),
    ("unaligned", |cache| {
        give(cache, take(cache).wrapping_add(1))
    }),
    ("stack", |cache| {
        let mut local = [0u64; 8];
        give(cache, (&raw mut local).cast());
    }),
    ("other-cache", |cache| {
        let other = RawCache::builder("others", SIZE).merge(false);
        let other = other.build().expect("a cache");
        let object = take(&other);
        give(cache, object);
        std::mem::forget(other);
    }),
    ("over-1", |cache| write_outside(cache, SIZE as isize, 1)),
    ("over-8", |cache| write_outside(cache, SIZE as isize, 8)),
    ("before-1", |cache| {
        // Not the first of a slab, before which may be no memory.
        let more = [(); 3].map(|()| take(cache));
        write_outside(cache, -1, 1);
        more.iter().for_each(|&object| give(cache, object));
    }),
    ("write-freed", |cache| {
        let object = take(cache);
        give(cache, object);
        // SAFETY: not safe, on purpose.
        unsafe { object.add(13).write(0x55) };
    }),
    ("double-large", |_| {
        let object = kmalloc(100 << 10, Gfp::KERNEL).expect("memory").as_ptr();
        // SAFETY: the second is not safe, on purpose.
        unsafe {
            kfree(object);
            kfree(object);
        }
    }),
    ("heap-double", |_| {
        with_heap(|object, layout| {
            drop_heap(object, layout);
            drop_heap(object, layout);
        });
    }),
    ("heap-sized-larger", |_| {
        with_heap(|object, _| {
            drop_heap(object, Layout::from_size_align(500, 8).expect("a layout"));
        });
    }),
];

fn churn(cache: &RawCache, count: usize) {
    let mut held = vec![null_mut(); count];
    held.iter_mut().for_each(|place| *place = take(cache));
    held.iter().for_each(|&object| give(cache, object));
}

/// Keeps the process on this CPU: a double free is seen at once only where the first one went.
fn stay_here() {
    // SAFETY: all-zero is a valid set; the calls write and read it only.
    unsafe {
        let mut here: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut here);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&here), &raw const here),
            0
        );
    }
}

/// The child: does the misuse that the variable names.
#[test]
fn one_misuse_is_done() {
    let Ok(wanted) = env::var(CASE) else {
        return;
    };
    stay_here();
    let misused = RawCache::builder("misused", SIZE).merge(false);
    let cache = misused.build().expect("a cache");
    let (_, misuse) = CASES.iter().find(|(name, _)| *name == wanted).expect("it");
    misuse(&cache);
    eprintln!("survived the call");
    churn(&cache, 1000);
    eprintln!("survived the next use");
    churn(&cache, 20_000);
    cache.shrink();
    eprintln!("survived the flush");
    std::process::exit(0);
}

/// What a child's end shows, in the words of the table.
fn seen(case: &str, options: &str) -> &'static str {
    let output = Command::new(env::current_exe().expect("our name"))
        .args(["one_misuse_is_done", "--exact", "--nocapture"])
        .env(CASE, case)
        .env("USLUB_OPTIONS", options)
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    let aborted = output.status.signal() == Some(libc::SIGABRT);
    let named = said.contains("uslub: ") || said.contains("BUG misused");
    assert!(
        output.status.success() || (aborted && named),
        "{case}, {options}: {:?}\n{said}",
        output.status
    );
    match (said.matches("survived").count(), aborted) {
        (0, true) => "at once",
        (1, true) => "next use",
        (2, true) => "flush",
        _ if said.contains("is not freed") => "warned",
        _ => "not",
    }
}

/// The rows of the table of a face, by misuse.
fn table() -> BTreeMap<String, Vec<String>> {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md"));
    text.expect("the document")
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let case = cells.next()?.strip_prefix("`rust/")?.strip_suffix('`')?;
            Some((
                case.to_owned(),
                cells.take(MODES.len()).map(str::to_owned).collect(),
            ))
        })
        .collect()
}

#[test]
fn each_misuse_is_seen_where_the_table_says() {
    let table = table();
    assert_eq!(table.len(), CASES.len(), "{:?}", table.keys());
    let mut wrong = String::new();
    for (case, _) in CASES {
        let found: Vec<_> = MODES.iter().map(|(_, o)| seen(case, o)).collect();
        let mut said = table[case].clone();
        if cfg!(feature = "hardened") {
            // The default is the hardened mode, in which no object is guarded.
            said[0] = said[1].clone();
            said[6] = said[1].clone();
        }
        if said != found {
            wrong += &format!("| `rust/{case}` | {} |\n", found.join(" | "));
        }
    }
    assert!(wrong.is_empty(), "this was seen:\n{wrong}");
}
