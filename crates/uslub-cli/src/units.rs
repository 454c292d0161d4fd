//! Formats sizes, counts, shares and times for people.

use std::time::Duration;

/// A size: `512 B`, `1.2 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 and above would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count in groups of three digits: `1 234 567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A share in per cent, rounded down, so only the whole is `100 %`; `None` if `whole` is 0.
pub fn share(part: u64, whole: u64) -> Option<String> {
    if whole == 0 {
        return None;
    }
    let tenths = u128::from(part.min(whole)) * 1000 / u128::from(whole);
    Some(match tenths {
        1000 => "100 %".to_owned(),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    })
}

/// A time: `0.21 s`.
pub fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// `one` for the number 1, `many` for any other number.
pub fn plural<'a>(number: u64, one: &'a str, many: &'a str) -> &'a str {
    if number == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_unit_where_four_digits_would_start() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (12_897_485, "12.3 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn counts_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1 000"),
            (1_234_567, "1 234 567"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn only_all_is_a_hundred_per_cent() {
        assert_eq!(share(0, 0), None);
        assert_eq!(share(0, 7).unwrap(), "0.0 %");
        assert_eq!(share(99_999, 100_000).unwrap(), "99.9 %");
        assert_eq!(share(7, 7).unwrap(), "100 %");
        assert_eq!(share(u64::MAX, u64::MAX).unwrap(), "100 %");
    }

    #[test]
    fn times_have_hundredths() {
        assert_eq!(seconds(Duration::from_millis(214)), "0.21 s");
        assert_eq!(seconds(Duration::from_secs(3700)), "3700.00 s");
    }
}
