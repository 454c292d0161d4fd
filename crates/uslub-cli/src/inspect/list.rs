//! The objects of a cache.

use super::ListOptions;
use super::target::Target;
use crate::failure::Failure;
use std::fmt::Write;
use uslub_inspect::slots::State;

/// The output for a cache of a target.
pub fn text(target: &Target, options: &ListOptions) -> Result<String, Failure> {
    let heaps = target.heaps()?;
    let mut found = None;
    for heap in &heaps {
        match heap.cache_named(&options.cache) {
            Ok(cache) => {
                found = Some((heap, cache));
                break;
            }
            Err(error) if heaps.len() == 1 => return Err(target.refuse(error)),
            Err(_) => {}
        }
    }
    let Some((heap, cache)) = found else {
        let error = uslub_inspect::Error::NoCache(options.cache.clone());
        return Err(target.refuse(error));
    };
    let mut out = String::new();
    let (mut shown, mut left) = (0, false);
    heap.for_each_slot(&cache, |at, state| {
        if state != State::Live && !options.all {
            return true;
        }
        if shown == options.limit {
            left = true;
            return false;
        }
        shown += 1;
        let _ = write!(out, "{at:#x}  {}", state.name());
        let mut content = vec![0; options.dump.min(cache.size as usize)];
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
    if out.is_empty() {
        let which = if options.all {
            "objects"
        } else {
            "live objects"
        };
        let _ = writeln!(out, "no {which} in cache {}", cache.name);
    }
    Ok(out)
}
