//! Times on the command line: `10s`, `1.5m`, `2h`, `500ms`, or seconds without a unit.

use std::time::Duration;

/// The longest time that is accepted: a week.
const LONGEST: f64 = 7.0 * 86_400.0;

/// The time that a word stands for.
pub fn parse(word: &str) -> Result<Duration, String> {
    let accepted = "write a number with ms, s, m or h, from 10ms to 168h, for example 10s";
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units
        .iter()
        .find_map(|&(unit, seconds)| Some((word.strip_suffix(unit)?, seconds)));
    let (digits, unit) = unit.unwrap_or((word, 1.0));
    let is_number = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_number);
    let seconds = number.ok_or_else(|| accepted.to_owned())? * unit;
    if !(0.01..=LONGEST).contains(&seconds) {
        return Err(accepted.to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_and_bounds_are_kept() {
        for (word, ms) in [
            ("10s", 10_000),
            ("2", 2000),
            ("1.5m", 90_000),
            ("500ms", 500),
            ("168h", 604_800_000),
        ] {
            assert_eq!(parse(word), Ok(Duration::from_millis(ms)), "{word}");
        }
        for word in [
            "", "s", "x", "10x", "-1s", "0", "1e9", "169h", "inf", "nan", "1..2", "5 s",
        ] {
            assert!(parse(word).is_err(), "{word}");
        }
    }
}
