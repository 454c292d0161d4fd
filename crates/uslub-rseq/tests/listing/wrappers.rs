//! Each operation in a function of its own, for `.ci/listing` to disassemble. Compiled by
//! `.ci/aarch64`.

use uslub_rseq::{Area, Index};

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_pop(
    area: &Area,
    table: *mut u8,
    slot: usize,
) -> *mut u8 {
    // SAFETY: never called; as in all that follow.
    unsafe { uslub_rseq::pop::<4096>(area, table, slot) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_push(
    area: &Area,
    table: *mut u8,
    slot: usize,
    object: *mut u8,
) -> bool {
    // SAFETY: as above.
    unsafe { uslub_rseq::push::<4096>(area, table, slot, object) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_exchange(
    area: &Area,
    table: *mut u8,
    slot: usize,
    old: usize,
    new: usize,
) -> bool {
    // SAFETY: as above.
    unsafe { uslub_rseq::exchange(area, table, slot, old, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_add(
    area: &Area,
    table: *mut u8,
    at: usize,
    n: usize,
    stopped: *mut u8,
) -> bool {
    // SAFETY: as above.
    unsafe { uslub_rseq::add(area, table, at, n, stopped) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_pop_many(
    area: &Area,
    table: *mut u8,
    slot: usize,
    out: *mut *mut u8,
    n: usize,
) -> bool {
    // SAFETY: as above.
    unsafe {
        let out = std::slice::from_raw_parts_mut(out, n);
        uslub_rseq::pop_many::<4096, 6>(area, table, slot, out)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sequence_push_many(
    area: &Area,
    table: *mut u8,
    slot: usize,
    objects: *const *mut u8,
    n: usize,
) -> bool {
    // SAFETY: as above.
    unsafe {
        let objects = std::slice::from_raw_parts(objects, n);
        uslub_rseq::push_many::<4096>(area, table, slot, objects)
    }
}

fn main() {
    let keep: [*const (); 6] = [
        sequence_pop as _,
        sequence_push as _,
        sequence_exchange as _,
        sequence_add as _,
        sequence_pop_many as _,
        sequence_push_many as _,
    ];
    println!(
        "{} operations, {:?}",
        std::hint::black_box(keep).len(),
        Index::MmCid
    );
}
