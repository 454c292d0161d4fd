//! Reads the kernel's text files about a process: `maps`, `smaps`, `status`.

use std::ops::Range;

use crate::memory::Map;

/// The address range at the start of a line of `maps`.
fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// One line of `maps`, or the first line of an entry of `smaps`. `None` for another line, and for
/// memory that the program may not read.
pub fn map(line: &str) -> Option<Map> {
    let mut words = line.split_ascii_whitespace();
    let range = range(words.next()?)?;
    let rights = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let name = words.nth(2).map_or("", |first| {
        // A name may contain spaces: it goes on to the end of the line.
        line.find(first).map_or("", |at| &line[at..])
    });
    Some(Map {
        range,
        writable: rights.contains('w'),
        offset,
        name: name.to_owned(),
    })
}

/// The mappings that `maps` lists.
pub fn maps(text: &str) -> Vec<Map> {
    text.lines().filter_map(map).collect()
}

/// What the program asked of the kernel about huge pages in a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    #[default]
    None,
    /// To use them (`MADV_HUGEPAGE`).
    Huge,
    /// Not to use them (`MADV_NOHUGEPAGE`).
    Small,
}

/// A mapping with its resident bytes.
#[derive(Clone, Debug)]
pub struct Resident {
    /// The mapping.
    pub map: Map,
    /// Resident bytes.
    pub bytes: u64,
    /// Bytes of them in huge pages.
    pub huge: u64,
    /// What was asked about huge pages.
    pub advice: Advice,
}

/// The mappings that `smaps` lists, with their resident bytes.
pub fn smaps(text: &str) -> Vec<Resident> {
    let mut all: Vec<Resident> = Vec::new();
    for line in text.lines() {
        if let Some(map) = map(line) {
            all.push(Resident {
                map,
                bytes: 0,
                huge: 0,
                advice: Advice::None,
            });
            continue;
        }
        let Some(last) = all.last_mut() else {
            continue;
        };
        if let Some(kib) = kib(line, "Rss:") {
            last.bytes = kib * 1024;
        } else if let Some(kib) = kib(line, "AnonHugePages:") {
            last.huge = kib * 1024;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            last.advice = advice(flags);
        }
    }
    all
}

/// What the flags of a mapping say about huge pages.
fn advice(flags: &str) -> Advice {
    let mut flags = flags.split_ascii_whitespace();
    let found = flags.find_map(|flag| match flag {
        "hg" => Some(Advice::Huge),
        "nh" => Some(Advice::Small),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The number of a line like `Rss:   12 kB`.
pub fn kib(line: &str, key: &str) -> Option<u64> {
    let rest = line.strip_prefix(key)?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The value of a key in `status`.
pub fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut values = text.lines().filter_map(|line| line.split_once(':'));
    values
        .find(|(k, _)| *k == key)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000002000 r-xp 00001000 08:01 123                        /usr/lib/a b.so (deleted)
Size:                  8 kB
Rss:                   4 kB
VmFlags: rd ex mr mw me
7f0000002000-7f0000009000 rw-p 00000000 00:00 0
Rss:                  12 kB
AnonHugePages:         8 kB
VmFlags: rd wr mr mw me ac hg sd
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                   8 kB
AnonHugePages:         0 kB
VmFlags: rd wr nh
";

    #[test]
    fn mappings_names_and_resident_bytes_are_read() {
        let all = smaps(SMAPS);
        let short: Vec<_> = all.iter().map(|r| (r.map.name.as_str(), r.bytes)).collect();
        let names = ["/usr/lib/a b.so (deleted)", "", "[stack]"];
        assert_eq!(
            short,
            [(names[0], 4096), (names[1], 12288), (names[2], 8192)]
        );
        assert_eq!((all[0].map.offset, all[0].map.writable), (0x1000, false));
        assert_eq!(all[1].map.range, 0x7f00_0000_2000..0x7f00_0000_9000);
        let pages: Vec<_> = all.iter().map(|r| (r.huge, r.advice)).collect();
        let expected = [(0, Advice::None), (8192, Advice::Huge), (0, Advice::Small)];
        assert_eq!(pages, expected);
        assert_eq!(maps(SMAPS).len(), 3);
    }

    #[test]
    fn a_status_value_is_found_by_its_key() {
        let text = "Name:\tsort\nState:\tZ (zombie)\nUid:\t0\t0\t0\t0\n";
        assert_eq!(status(text, "Name"), Some("sort"));
        assert_eq!(status(text, "VmRSS"), None);
    }
}
