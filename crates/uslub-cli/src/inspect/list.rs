//! The objects of the caches with a name.

use super::ListOptions;
use super::target::Target;
use crate::failure::Failure;
use std::fmt::Write;
use uslub_inspect::Heap;
use uslub_inspect::heap::Cache;
use uslub_inspect::root::Root;
use uslub_inspect::slots::State;

/// The output for the caches of a target that have the name.
pub fn text(target: &Target, options: &ListOptions) -> Result<String, Failure> {
    let heaps = target.heaps()?;
    let named = |heap| {
        let caches = Heap::caches_named(heap, &options.cache).into_iter();
        caches.map(move |cache| (heap, cache))
    };
    let found: Vec<_> = heaps.iter().flat_map(named).collect();
    if found.is_empty() {
        let error = uslub_inspect::Error::NoCache(options.cache.clone());
        return Err(target.refuse(error));
    }
    let mut out = String::new();
    for (heap, cache) in &found {
        if found.len() > 1 {
            let _ = writeln!(out, "{}:", origin(heap.root(), cache));
        }
        push(&mut out, heap, cache, options);
    }
    Ok(out)
}

/// Which one of several caches with a name it is.
pub fn origin(root: &Root, cache: &Cache) -> String {
    let file = root.file.rsplit('/').next().unwrap_or("");
    let place = match file {
        "" => String::new(),
        file => format!(" in {file}"),
    };
    format!(
        "'{}', cache {} of the allocator '{}'{place}",
        cache.name, cache.index, root.face
    )
}

/// The objects of one cache.
fn push(out: &mut String, heap: &Heap<'_>, cache: &Cache, options: &ListOptions) {
    let (mut shown, mut left) = (0, false);
    heap.for_each_slot(cache, |at, state| {
        if state != State::Live && !options.all {
            return true;
        }
        if shown == options.limit {
            left = true;
            return false;
        }
        shown += 1;
        let _ = write!(out, "{at:#x}  {}", state.name());
        let mut content = vec![0; options.dump.min(cache.object_bytes() as usize)];
        if !content.is_empty() && heap.memory().read(at, &mut content).is_ok() {
            for byte in &content {
                let _ = write!(out, " {byte:02x}");
            }
            let print = |&b: &u8| {
                if (b' '..=b'~').contains(&b) {
                    b as char
                } else {
                    '.'
                }
            };
            let text: String = content.iter().map(print).collect();
            let _ = write!(out, "  {text}");
        }
        out.push('\n');
        true
    });
    if left {
        let _ = writeln!(out, "…more (--limit {} was reached)", options.limit);
    }
    if shown == 0 && !left {
        let which = if options.all {
            "objects"
        } else {
            "live objects"
        };
        let _ = writeln!(out, "no {which} in cache {}", cache.name);
    }
}
