//! Times as people write and read them.

use std::time::Duration;

/// A time: `250ms`, `2s`, `1.5m`, `1h`; a number alone is seconds.
///
/// # Errors
///
/// If it is none of these, or longer than a year.
pub fn parse(text: &str) -> Result<Duration, String> {
    let end = text
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .len();
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("'{unit}' is no unit of time: ms, s, m, h, d")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "write a number and a unit, for example 250ms, 2s, 5m".to_owned())?;
    let seconds = number * seconds;
    if !(0.0..=366.0 * 86_400.0).contains(&seconds) {
        return Err("it must be 0 to 366 days".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A time between two looks.
///
/// # Errors
///
/// If it is no time, or not from 10 ms to an hour.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    let range = Duration::from_millis(10)..=Duration::from_secs(3600);
    if range.contains(&time) {
        Ok(time)
    } else {
        Err("it must be 10ms to 1h".to_owned())
    }
}

/// A time for people: `0.4 s`, `2 min 5 s`, `3 h 7 min`, `2 d 4 h`.
pub fn text(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{}.{} s", s, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A date and time of day in UTC, of seconds since 1970.
pub fn date(since: u64) -> String {
    let (days, s) = (since / 86_400, since % 86_400);
    let (year, month, day) = civil(days);
    let (h, m, s) = (s / 3600, s % 3600 / 60, s % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

/// Year, month and day of a number of days since 1970. Counts in years that begin in March: then
/// the leap day is the last one, and the length of the months before it follows one rule.
fn civil(days: u64) -> (u64, u64, u64) {
    // From 1 March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let is_next = u64::from(month >= 10);
    let number = if is_next == 1 { month - 9 } else { month + 3 };
    (era * 400 + year + is_next, number, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (word, ms) in [
            ("250ms", 250),
            ("2", 2000),
            ("1.5s", 1500),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(word).unwrap().as_millis(), ms, "{word}");
        }
        assert!(parse("5 weeks").unwrap_err().contains("'weeks' is no unit"));
        assert!(parse("s").unwrap_err().contains("for example"));
        for wrong in ["-1s", "nans", "inf", "1e30s", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse_interval("5ms").unwrap_err().contains("10ms to 1h"));
        assert!(parse_interval("10ms").is_ok() && parse_interval("2h").is_err());
    }

    #[test]
    fn times_and_dates_are_written_for_people() {
        assert_eq!(text(440), "0.4 s");
        assert_eq!(text(125_000), "2 min 5 s");
        assert_eq!(text(11_220_000), "3 h 7 min");
        assert_eq!(text(187_200_000), "2 d 4 h");
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_807_926), "2026-11-27 19:32:06 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }
}
