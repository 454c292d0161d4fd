//! Objects that are resized.

use crate::support;
use crate::support::assert_all_is_given_back;
use uslub_core::Gfp;

#[test]
fn what_a_zeroed_object_grows_by_is_zero() {
    let a = support::allocator(1);
    let gfp = Gfp::KERNEL | Gfp::ZERO;
    // Old bytes everywhere.
    let dirty: Vec<_> = [100, 1000, 5000, 9000, 70_000, 300_000]
        .iter()
        .map(|&bytes| {
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            support::pattern::fill(object, a.ksize(object), 0xff);
            object
        })
        .collect();
    for object in dirty {
        // SAFETY: the test's object, freed once.
        unsafe { a.kfree(object) };
    }
    let mut object = a.kmalloc(10, gfp);
    let mut written = 10;
    support::pattern::fill(object, written, 0x55);
    for bytes in [
        15, 90, 60, 100, 1000, 900, 5000, 9000, 8100, 70_000, 300_000, 299_000, 600_000,
    ] {
        // SAFETY: the test's object; the old pointer is used no more.
        object = unsafe { a.krealloc(object, bytes, gfp) };
        written = written.min(bytes);
        assert!(
            support::pattern::is_filled(object, written, 0x55),
            "{bytes}"
        );
        let rest = object.wrapping_add(written);
        assert!(
            support::pattern::is_filled(rest, bytes - written, 0),
            "{bytes}"
        );
        support::pattern::fill(object, bytes, 0x55);
        written = bytes;
    }
    // SAFETY: the test's object, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}
