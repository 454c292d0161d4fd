//! Filling objects with bytes that tell them apart, and finding them again.

/// Fills `bytes` at `object`.
pub fn fill(object: *mut u8, bytes: usize, byte: u8) {
    // SAFETY: the test owns the object and asked for so many bytes.
    unsafe { object.write_bytes(byte, bytes) }
}

/// Whether `bytes` at `object` are all `byte`.
pub fn is_filled(object: *const u8, bytes: usize, byte: u8) -> bool {
    if bytes == 0 {
        return true;
    }
    // SAFETY: the test owns the object and asked for so many bytes.
    let all = unsafe { std::slice::from_raw_parts(object, bytes) };
    // Every byte equals the one before it; a comparison of slices, as that is fast without
    // optimisation.
    all[0] == byte && all[1..] == all[..bytes - 1]
}
