//! Every text that the libraries read: tunables, the C tuning of a cache, and what the kernel says
//! of nodes.

#![no_main]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use uslub_capi_linked as _;
use uslub_core::tunables::{TUNABLES, Tunables, Tuning};
use uslub_linux::numa::{distances_in, set_in};
use uslub_linux::start::tunables_in;

/// A setting, half of a good one more often than none at all.
#[derive(Arbitrary, Debug)]
struct Setting {
    key: Key,
    value: Value,
    /// Blanks before the key, behind it, before the value and behind it.
    blanks: [bool; 4],
}

#[derive(Arbitrary, Debug)]
enum Key {
    Known(u8),
    /// A known one without its first or last letter.
    Cut(u8, bool),
    Other(String),
}

#[derive(Arbitrary, Debug)]
enum Value {
    Number(u32),
    /// A bound of the tunable, and so much beside it.
    Bound(bool, i8),
    Big(i128),
    Other(String),
    /// No value, and no sign.
    None,
}

impl Setting {
    fn text(&self) -> String {
        let tunable = |n: u8| &TUNABLES[usize::from(n) % TUNABLES.len()];
        let (known, key) = match &self.key {
            Key::Known(n) => (tunable(*n), tunable(*n).name),
            Key::Cut(n, first) => {
                let name = tunable(*n).name;
                let cut = match first {
                    true => &name[1..],
                    false => &name[..name.len() - 1],
                };
                (tunable(*n), cut)
            }
            Key::Other(text) => (tunable(0), text.as_str()),
        };
        let value = match &self.value {
            Value::Number(n) => n.to_string(),
            Value::Bound(max, off) => {
                let bound = if *max { known.max } else { known.min };
                (i64::from(bound) + i64::from(*off)).to_string()
            }
            Value::Big(n) => n.to_string(),
            Value::Other(text) => text.clone(),
            Value::None => return key.to_owned(),
        };
        let blank = |i: usize| if self.blanks[i] { " " } else { "" };
        format!(
            "{}{key}{}={}{value}{}",
            blank(0),
            blank(1),
            blank(2),
            blank(3)
        )
    }
}

#[derive(Arbitrary, Debug)]
enum Input {
    Settings(Vec<Setting>),
    Options(String),
    Nodes(Vec<(u8, Option<u8>)>),
    Bytes(Vec<u8>),
}

/// What a tunable must be after a setting was accepted, by rules of our own: a known name, and a
/// whole number in decimal digits within the bounds.
fn expected(setting: &str) -> Option<(&'static str, u32)> {
    let (key, value) = setting.split_once('=')?;
    let known = TUNABLES.iter().find(|t| t.name == key.trim())?;
    let value = value.trim();
    let (negative, digits) = match value.as_bytes().first()? {
        b'-' => (true, &value[1..]),
        b'+' => (false, &value[1..]),
        _ => (false, value),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = digits.bytes().try_fold(0u32, |sum, b| {
        sum.checked_mul(10)?.checked_add(u32::from(b - b'0'))
    })?;
    let fits = (known.min..=known.max).contains(&number) && (!negative || number == 0);
    fits.then_some((known.name, number))
}

fn settings(text: &str) {
    let mut all = Tunables::DEFAULT;
    let mut wrong = 0;
    for setting in text.split(',').filter(|setting| !setting.is_empty()) {
        let (before, mut tuning) = (all, all.tuning);
        let of_a_cache = tuning.set(setting);
        match (all.set(setting), expected(setting)) {
            (Ok(()), Some((name, number))) => {
                let known = TUNABLES.iter().find(|t| t.name == name).expect("known");
                assert_eq!(known.get(&all), number);
                assert_eq!(of_a_cache.is_ok(), known.get_of(&tuning).is_some());
                assert!(of_a_cache.is_err() || tuning == all.tuning);
            }
            (Err(error), None) => {
                assert!(!error.to_string().is_empty());
                assert_eq!((all, tuning), (before, before.tuning));
                wrong += 1;
            }
            (got, wanted) => panic!("{setting:?}: {got:?}, not {wanted:?}"),
        }
    }
    // The library's own way through the text comes to the same end.
    let mut refused = 0;
    assert_eq!(tunables_in(text, |_| refused += 1), all);
    assert_eq!(refused, wrong);
    assert_eq!(all.tuning.check().map_err(|t| t.name), Ok(()));
    // What is written from the values reads as the same values.
    let mut again = Tunables::DEFAULT;
    for tunable in TUNABLES {
        let setting = format!("{}={}", tunable.name, tunable.get(&all));
        again.set(&setting).expect("a value in bounds");
    }
    assert_eq!(again, all);
    c_tuning(text);
}

/// `struct uslub_cache_args` of `uslub.h`.
#[repr(C)]
struct Args {
    size: usize,
    align: usize,
    flags: u32,
    free_gfp: u32,
    ctor: *const c_void,
    ctor_with: *const c_void,
    ctor_data: *mut c_void,
    sheaf_capacity: usize,
    limit: usize,
    tuning: *const c_char,
    reserved: [usize; 3],
}

unsafe extern "C" {
    fn uslub_cache_create(name: *const c_char, args: *const Args) -> *mut c_void;
    fn uslub_cache_destroy(cache: *mut c_void) -> usize;
}

/// A cache is created if, and only if, each setting is one that a cache can have.
fn c_tuning(text: &str) {
    let Ok(tuning) = CString::new(text) else {
        return;
    };
    let mut one = Tuning::DEFAULT;
    let good = text
        .split(',')
        .filter(|setting| !setting.trim().is_empty())
        .all(|setting| one.set(setting).is_ok());
    create(&tuning, Some(good));
}

fn create(tuning: &CStr, good: Option<bool>) {
    let args = Args {
        size: 64,
        align: 0,
        flags: 0,
        free_gfp: 0,
        ctor: null(),
        ctor_with: null(),
        ctor_data: null_mut(),
        sheaf_capacity: 0,
        limit: 0,
        tuning: tuning.as_ptr(),
        reserved: [0; 3],
    };
    // SAFETY: initialised arguments and C strings; the cache is destroyed once.
    unsafe {
        let cache = uslub_cache_create(c"fuzz".as_ptr(), &raw const args);
        if let Some(good) = good {
            assert_eq!(!cache.is_null(), good, "{tuning:?}");
        }
        if cache.is_null() {
            assert_eq!(*libc::__errno_location(), libc::EINVAL);
        } else {
            assert_eq!(uslub_cache_destroy(cache), 0);
        }
    }
}

/// Lists of nodes as the kernel writes them, and some that it does not.
fn nodes(ranges: &[(u8, Option<u8>)]) {
    let mut text = String::new();
    let mut set = Some(0u64);
    for (i, &(first, last)) in ranges.iter().enumerate() {
        let (first, last) = (first % 70, last.map(|last| last % 70));
        text += if i > 0 { "," } else { "" };
        text += &first.to_string();
        if let Some(last) = last {
            text += &format!("-{last}");
        }
        let last = last.unwrap_or(first);
        set = set.filter(|_| last < 64 && first <= last);
        set = set.map(|set| (first..=last).fold(set, |set, nid| set | 1 << nid));
    }
    assert_eq!(set_in(text.as_bytes()), set.filter(|&set| set != 0));
    text.push('\n');
    assert_eq!(set_in(text.as_bytes()), set.filter(|&set| set != 0));
}

fn bytes(text: &[u8]) {
    assert_ne!(set_in(text), Some(0));
    let words = text
        .split(|b| !b.is_ascii_digit())
        .filter(|w| !w.is_empty());
    assert_eq!(distances_in(text).count(), words.count());
    if let Ok(tuning) = CString::new(text) {
        create(&tuning, std::str::from_utf8(text).is_err().then_some(false));
    }
}

fuzz_target!(|input: Input| {
    match &input {
        Input::Settings(all) => {
            let all: Vec<_> = all.iter().map(Setting::text).collect();
            settings(&all.join(","));
        }
        Input::Options(text) => settings(text),
        Input::Nodes(ranges) => nodes(ranges),
        Input::Bytes(text) => bytes(text),
    }
});
