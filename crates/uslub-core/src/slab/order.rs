//! Sizes: how large a slab is (the kernel's order computation), and how many objects a sheaf holds.
//!
//! Pure functions. Callers: `slab::cache` and `sheaf::cache`, when a cache is created.

use crate::platform::PAGE_SIZE;
use crate::policy::{INITIAL_CAPACITY_MAX, SLAB_MULTIPLE_MIN_OBJECTS};

const _: () = assert!(INITIAL_CAPACITY_MAX <= crate::percpu::sheaf::MAX_CAPACITY);

/// Most objects of a slab (a 15-bit field, as in the kernel).
pub const MAX_OBJECTS: usize = 32767;
/// Largest order of a slab: 256 KiB, so that offsets fit into the state word.
pub const MAX_SLAB_ORDER: u32 = 6;

/// Size of a slab: 2^order pages with `objects` slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabGeometry {
    /// log2 of the number of pages.
    pub order: u32,
    /// Number of slots.
    pub objects: u32,
}

impl SlabGeometry {
    /// Pages of the slab.
    pub const fn pages(self) -> usize {
        1 << self.order
    }

    /// Bytes of the slab.
    pub const fn bytes(self) -> usize {
        PAGE_SIZE << self.order
    }
}

/// Bounds for [`calculate_order`].
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Smallest order (`slab_min_order`).
    pub min_order: u32,
    /// Largest order, unless one object needs more (`slab_max_order`).
    pub max_order: u32,
    /// Least number of objects wanted in a slab (`slab_min_objects`).
    pub min_objects: usize,
}

/// Least number of objects wanted in a slab, with `nr_cpus` CPUs: 4 · (fls(`nr_cpus`) + 1).
///
/// ```
/// assert_eq!(uslub_core::slab::order::default_min_objects(8), 20);
/// ```
pub const fn default_min_objects(nr_cpus: usize) -> usize {
    4 * (usize::BITS as usize - nr_cpus.leading_zeros() as usize + 1)
}

fn order_for_bytes(bytes: usize) -> u32 {
    bytes.div_ceil(PAGE_SIZE).next_power_of_two().ilog2()
}

/// The order of slabs with slots of `size` bytes, by the kernel's rule. The rule takes the smallest
/// order that wastes at most 1/16 of the slab. Failing this it tries 1/8, 1/4 and 1/2, then the
/// order that holds one object. `None` if one object exceeds the largest slab.
///
/// ```
/// use uslub_core::slab::order::{Bounds, SlabGeometry, calculate_order};
/// let b = Bounds { min_order: 0, max_order: 3, min_objects: 20 };
/// assert_eq!(calculate_order(256, b), Some(SlabGeometry { order: 1, objects: 32 }));
/// ```
pub fn calculate_order(size: usize, bounds: Bounds) -> Option<SlabGeometry> {
    let most = (PAGE_SIZE << bounds.max_order) / size;
    let min_objects = bounds.min_objects.min(most.max(1));
    let mut min_order = bounds.min_order.max(order_for_bytes(min_objects * size));
    if (PAGE_SIZE << min_order) / size > MAX_OBJECTS {
        min_order = order_for_bytes(size * MAX_OBJECTS).saturating_sub(1);
    }
    let fits = |order: u32| SlabGeometry {
        order,
        objects: ((PAGE_SIZE << order) / size) as u32,
    };
    for fraction in [16, 8, 4, 2] {
        for order in min_order..=bounds.max_order {
            let bytes = PAGE_SIZE << order;
            if bytes % size <= bytes / fraction && bytes >= size {
                return Some(fits(order));
            }
        }
    }
    let order = order_for_bytes(size);
    (order <= MAX_SLAB_ORDER).then(|| fits(order))
}

/// Objects of a sheaf for slots of `size` bytes: the kernel's 4, 12, 28 or 60, with two
/// differences:
///
/// - 60 up to 256 bytes instead of 255, since network buffers of 256 bytes come in bulks of 32 to
///   48;
/// - up to 64 bytes about two slabs' objects (8 KiB in all), so that a bulk free finds [whole
///   slabs](crate::slab::whole_slab).
pub const fn sheaf_capacity(size: usize) -> usize {
    match size {
        4096.. => 4,
        1024.. => 12,
        257.. => 28,
        65.. => 60,
        33.. => 124,
        _ => INITIAL_CAPACITY_MAX,
    }
}

/// The largest number of objects up to `most` that makes whole slabs of `objects` objects; `most`
/// itself if a slab has more than `most` objects, or at most 16.
///
/// A sheaf of this capacity is filled and emptied by whole slabs without a remainder.
///
/// ```
/// assert_eq!(uslub_core::slab::order::round_to_slabs(250, 64), 192);
/// assert_eq!(uslub_core::slab::order::round_to_slabs(250, 16), 250);
/// assert_eq!(uslub_core::slab::order::round_to_slabs(60, 64), 60);
/// ```
pub const fn round_to_slabs(most: usize, objects: usize) -> usize {
    if objects > most || objects <= SLAB_MULTIPLE_MIN_OBJECTS {
        return most;
    }
    most - most % objects
}

/// Slots to use in a slab with room for `objects`: a multiple of half of [`INITIAL_CAPACITY_MAX`],
/// if this wastes at most 1/32 of the slab; otherwise all.
///
/// ```
/// use uslub_core::slab::order::round_to_sheaves;
/// let rounded = [256, 128, 170].map(round_to_sheaves);
/// assert_eq!(rounded, [250, 125, 170]);
/// ```
pub const fn round_to_sheaves(objects: u32) -> u32 {
    let over = objects % (INITIAL_CAPACITY_MAX as u32 / 2);
    if over <= objects / 32 {
        objects - over
    } else {
        objects
    }
}

/// Empty slabs that a node's partial list keeps: log2(`size`)/2, from 5 to 10.
pub fn min_partial(size: usize) -> usize {
    (size.ilog2() as usize / 2).clamp(5, 10)
}

/// A tunable, or the default where it is 0.
pub(crate) fn set_or(tunable: u32, default: usize) -> usize {
    match tunable {
        0 => default,
        tunable => tunable as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Bounds = Bounds {
        min_order: 0,
        max_order: 3,
        min_objects: 20,
    };

    #[test]
    fn orders_and_capacities_are_the_specifications_on_8_cpus() {
        assert_eq!(default_min_objects(8), 20);
        for (size, objects, order) in [
            (16, 256, 0),
            (32, 128, 0),
            (64, 64, 0),
            (128, 32, 0),
            (256, 32, 1),
            (512, 32, 2),
        ] {
            assert_eq!(
                calculate_order(size, KERNEL),
                Some(SlabGeometry { order, objects }),
                "size {size}"
            );
        }
        for (size, capacity) in [
            (8, 250),
            (32, 250),
            (33, 124),
            (64, 124),
            (65, 60),
            (255, 60),
            (256, 60),
            (257, 28),
            (1023, 28),
            (1024, 12),
            (4095, 12),
            (4096, 4),
        ] {
            assert_eq!(sheaf_capacity(size), capacity);
        }
        assert_eq!(
            (min_partial(8), min_partial(4096), min_partial(1 << 20)),
            (5, 6, 10)
        );
    }

    #[test]
    fn every_order_holds_its_objects_and_wastes_no_more_than_allowed() {
        for size in (8..40_000).step_by(8) {
            let o = calculate_order(size, KERNEL).unwrap();
            assert!(o.objects >= 1 && o.objects as usize <= MAX_OBJECTS);
            assert!(o.objects as usize * size <= o.bytes());
            if o.order <= KERNEL.max_order {
                assert!(o.bytes() - o.objects as usize * size <= o.bytes() / 2);
            }
        }
        assert_eq!(calculate_order(PAGE_SIZE << 7, KERNEL), None);
    }

    #[test]
    fn a_slab_never_holds_more_objects_than_its_counter() {
        let b = Bounds {
            min_order: 6,
            max_order: 6,
            min_objects: 1 << 20,
        };
        assert!(calculate_order(8, b).unwrap().objects as usize <= MAX_OBJECTS);
    }
}
