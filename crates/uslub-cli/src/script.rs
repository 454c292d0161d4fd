//! Parses the `#!` line of a script. `program` follows it to the interpreter.

use crate::unsuitable::Reason;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes at the start of a file that the kernel reads to detect the format.
pub const HEAD: usize = 256;

/// The content of a `#!` line.
#[derive(Debug, PartialEq, Eq)]
pub struct Shebang {
    /// The interpreter's file.
    pub interpreter: PathBuf,
    /// The rest of the line as one argument, including blanks.
    pub argument: Option<OsString>,
}

/// Parses the `#!` line at the start of `head`; `None` without such a line.
///
/// # Errors
///
/// If the line names no interpreter or ends with a carriage return.
pub fn shebang(head: &[u8]) -> Result<Option<Shebang>, Reason> {
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = rest
        .split(|&b| b == b'\n' || b == 0)
        .next()
        .unwrap_or_default();
    let line = trim(line);
    if line.ends_with(b"\r") {
        return Err(Reason::CarriageReturn);
    }
    let end = line.iter().position(|&b| is_blank(b)).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    if interpreter.is_empty() {
        return Err(Reason::EmptyShebang);
    }
    let argument = trim(argument);
    Ok(Some(Shebang {
        interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
        argument: (!argument.is_empty()).then(|| OsStr::from_bytes(argument).to_owned()),
    }))
}

impl Shebang {
    /// The program that `env` would look up, if the interpreter is `env` and the line is
    /// simple enough to parse here.
    pub fn through_env(&self) -> Option<&OsStr> {
        if self.interpreter.file_name() != Some(OsStr::new("env")) {
            return None;
        }
        let argument = self.argument.as_deref()?.as_bytes();
        let split = argument
            .strip_prefix(b"-S")
            .or_else(|| argument.strip_prefix(b"--split-string="));
        let Some(words) = split else {
            // Without -S, env takes the whole rest of the line as one word.
            let plain = !argument.starts_with(b"-") && !argument.contains(&b'=');
            return plain.then(|| OsStr::from_bytes(argument));
        };
        let mut words = words.split(|&b| is_blank(b)).filter(|w| !w.is_empty());
        let first = words.find(|w| !w.contains(&b'='))?;
        let plain = first
            .iter()
            .all(|b| !b"-'\"\\$".contains(b) || (*b == b'-' && first[0] != b'-'));
        plain.then(|| OsStr::from_bytes(first))
    }
}

/// Whether a file without `#!` may be a script for `/bin/sh`: its head looks like text.
pub fn looks_like_text(head: &[u8]) -> bool {
    !head.contains(&0)
}

/// The shell that runs scripts without a `#!` line.
pub fn shell() -> &'static Path {
    Path::new("/bin/sh")
}

fn is_blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t')
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Shebang {
        shebang(head.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn interpreter_and_argument_are_split_as_the_kernel_does() {
        assert_eq!(shebang(b"echo hello\n").unwrap(), None);
        let s = read("#! /bin/sh \nexit\n");
        assert_eq!(
            (s.interpreter, s.argument),
            (PathBuf::from("/bin/sh"), None)
        );
        let s = read("#!/usr/bin/awk -f  x \n");
        assert_eq!(s.interpreter, Path::new("/usr/bin/awk"));
        assert_eq!(s.argument.unwrap(), "-f  x");
    }

    #[test]
    fn a_line_that_names_nothing_is_refused() {
        assert!(matches!(shebang(b"#!\n"), Err(Reason::EmptyShebang)));
        assert!(matches!(shebang(b"#!  \t"), Err(Reason::EmptyShebang)));
        assert!(matches!(
            shebang(b"#!/bin/sh\r\n"),
            Err(Reason::CarriageReturn)
        ));
    }

    #[test]
    fn env_is_seen_through_where_its_line_is_simple() {
        let target = |line| read(line).through_env().map(OsStr::to_owned);
        assert_eq!(target("#!/usr/bin/env python3\n").unwrap(), "python3");
        assert_eq!(
            target("#!/usr/bin/env -S A=1 my-tool -u\n").unwrap(),
            "my-tool"
        );
        assert_eq!(target("#!/usr/bin/env -Sruby -w\n").unwrap(), "ruby");
        assert_eq!(target("#!/usr/bin/env -S -i sh\n"), None);
        assert_eq!(target("#!/usr/bin/env -i\n"), None);
        assert_eq!(target("#!/usr/bin/env\n"), None);
        assert_eq!(target("#!/bin/sh -e\n"), None);
    }
}
