//! Numbers as text. `table`, `page` and the cells of rows use it.

/// A value, followed by minimum and maximum if they are known and differ.
pub fn with_spread(value: Option<f64>, spread: Option<[f64; 2]>) -> String {
    match spread_of(value, spread) {
        Some(spread) => format!("{} ({spread})", optional(value)),
        None => optional(value),
    }
}

/// Minimum and maximum of a known value if they differ.
pub fn spread_of(value: Option<f64>, spread: Option<[f64; 2]>) -> Option<String> {
    let [least, greatest] = value.and(spread)?;
    (least < greatest).then(|| format!("{} … {}", figure(least), figure(greatest)))
}

/// A value; a dash if it is unknown.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), figure)
}

/// A number with an appropriate number of digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => grouped(value.round() as i64),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        v if v >= 0.005 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

fn grouped(number: i64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_they_deserve() {
        let figures = [0.0, 0.4567, 1.5, 12.34, 123.4, 1234.4, 1_234_567.0].map(figure);
        assert_eq!(
            figures,
            [
                "0",
                "0.46",
                "1.50",
                "12.3",
                "123",
                "1\u{202f}234",
                "1\u{202f}234\u{202f}567"
            ]
        );
    }

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        assert_eq!(
            with_spread(Some(1.0), Some([0.5, 2.0])),
            "1.00 (0.50 … 2.00)"
        );
        assert_eq!(with_spread(Some(1.0), Some([1.0, 1.0])), "1.00");
        assert_eq!(with_spread(None, None), "–");
    }
}
