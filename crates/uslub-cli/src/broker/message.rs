//! The request and the answer.
//!
//! | message | bytes |
//! |---|---|
//! | request | `ulk1`, number of the process (`i32`, little endian) |
//! | answer | [`Refusal`] or 0 (`u32`), the system's error or 0 (`u32`) |
//!
//! An answer without a refusal has the descriptors of [`FILES`].

/// First bytes of a request; the digit is the version.
const MARK: &[u8; 4] = b"ulk1";
/// Bytes of a request and of an answer.
pub const BYTES: usize = 8;
/// The files of `/proc/PID` whose descriptors an answer has, in this order.
pub const FILES: [&str; 4] = ["mem", "pagemap", "maps", "smaps"];

/// Why a broker opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process does not descend from the broker, or has ended.
    NoDescendant,
    /// The process has closed itself, for example with `PR_SET_DUMPABLE`.
    Closed,
    /// The process has rights that the asking process lacks.
    MoreRights,
    /// The system refuses, with this error.
    System(i32),
}

/// The request for a process.
pub fn request(pid: i32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(MARK);
    bytes[4..].copy_from_slice(&pid.to_le_bytes());
    bytes
}

/// The process that a request names; `None` if it is no request.
pub fn requested(bytes: &[u8]) -> Option<i32> {
    let number = bytes.strip_prefix(MARK)?;
    let pid = i32::from_le_bytes(number.try_into().ok()?);
    (pid > 0).then_some(pid)
}

/// The answer.
pub fn answer(refusal: Option<Refusal>) -> [u8; BYTES] {
    let (code, error): (u32, i32) = match refusal {
        None => (0, 0),
        Some(Refusal::NoDescendant) => (1, 0),
        Some(Refusal::Closed) => (2, 0),
        Some(Refusal::MoreRights) => (3, 0),
        Some(Refusal::System(error)) => (4, error),
    };
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..].copy_from_slice(&error.to_le_bytes());
    bytes
}

/// What an answer says; `None` if it is no answer.
pub fn answered(bytes: &[u8]) -> Option<Result<(), Refusal>> {
    let (code, error) = bytes.split_first_chunk::<4>()?;
    let error = i32::from_le_bytes(error.try_into().ok()?);
    match u32::from_le_bytes(*code) {
        0 => Some(Ok(())),
        1 => Some(Err(Refusal::NoDescendant)),
        2 => Some(Err(Refusal::Closed)),
        3 => Some(Err(Refusal::MoreRights)),
        4 => Some(Err(Refusal::System(error))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_other_bytes_are_none() {
        assert_eq!(requested(&request(4711)), Some(4711));
        assert_eq!(requested(&request(-1)), None);
        for bytes in [&b"ulk14"[..], b"ulk2\x01\0\0\0", b"ulk1\x01\0\0\0\0", b""] {
            assert_eq!(requested(bytes), None);
        }
        let all = [Refusal::NoDescendant, Refusal::Closed, Refusal::MoreRights];
        for refusal in all.into_iter().chain([Refusal::System(13)]) {
            assert_eq!(answered(&answer(Some(refusal))), Some(Err(refusal)));
        }
        assert_eq!(answered(&answer(None)), Some(Ok(())));
        assert_eq!(answered(&[9, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(answered(&[0; 7]), None);
    }
}
