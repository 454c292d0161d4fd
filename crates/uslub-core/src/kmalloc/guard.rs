//! Guarded objects of size classes: the page of a guarded object ends where the object does, so
//! that even one byte too much faults, as far as the alignment lets it.

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::sized_free::is_of_class;
use crate::kmalloc::{NR_CLASSES, class_size};
use crate::misuse::Misuse;
use crate::percpu::CacheId;
use crate::platform::Platform;

/// Alignment that callers of kmalloc rely on for `bytes` bytes of a class of `size` bytes.
fn align_of(bytes: usize, size: usize) -> usize {
    if size <= 8 {
        8
    } else if bytes.is_power_of_two() {
        bytes.max(16)
    } else {
        16
    }
}

impl<P: Platform> Allocator<P> {
    /// The slow path of an allocation where some objects are guarded: a guarded one, if it is due.
    /// A caller that zeroes the object zeroes all of it, so its size is then the class's.
    #[cold]
    #[inline(never)]
    pub(super) fn guarded_kmalloc(&self, id: CacheId, bytes: usize, gfp: Gfp) -> *mut u8 {
        let size = class_size(id.index());
        let asked = if gfp.contains(Gfp::ZERO) { size } else { bytes };
        if gfp.may_map()
            && let Some(cache) = self.class_cache(id, gfp)
        {
            let object = self.guarded_take(cache, asked, align_of(asked, size));
            if !object.is_null() {
                return object;
            }
        }
        self.kmalloc_unguarded(id, bytes, gfp)
    }

    /// Ends the process if a guarded object has fewer than `bytes` bytes, or cannot have been
    /// requested with so few. With `kept` a resize may have left it larger.
    #[cold]
    #[inline(never)]
    pub(super) fn guarded_check_size(
        &self,
        call: &str,
        object: *mut u8,
        bytes: usize,
        align: usize,
        kept: bool,
    ) {
        let size = self.guarded_size(object, call);
        let slot = self.guarded_at(object, call).ok();
        let id = slot.and_then(|slot| CacheId::from_raw(slot.cache()));
        // An object of a named cache may have any size.
        let class = id.map(CacheId::index).filter(|&class| class <= NR_CLASSES);
        // A resize to what it has keeps an aligned object where it is.
        let fits =
            kept || bytes == size || class.is_none_or(|class| is_of_class(class, bytes, align));
        if bytes > size || !fits {
            let name = slot.map(|slot| self.guarded_cache(slot));
            Misuse::WrongSize(name, call, object, bytes, size).fatal(&self.platform);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmalloc::{CLASS_MAX, class_of};

    #[test]
    fn a_page_ends_at_an_object_whose_alignment_is_what_its_class_has() {
        for bytes in 0..=CLASS_MAX {
            let size = class_size(class_of(bytes).index());
            let align = align_of(bytes, size);
            assert!(align >= 8 && align.is_power_of_two() && size.is_multiple_of(align));
            let is_plain = bytes > 8 && !bytes.is_power_of_two();
            assert_eq!(align == 16, is_plain || bytes == 16, "{bytes}");
        }
    }
}
