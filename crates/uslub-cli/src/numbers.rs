//! Numbers on the command line. A wrong one is answered by what is accepted.

use clap::{Arg, Command};
use std::fmt::Display;

/// A reader of whole numbers from `least` to `most`, for an option.
pub fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone
where
    N: TryFrom<u64> + PartialOrd + Copy + Display,
{
    move |word| {
        let number = digits(word).filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// The same without a largest number.
pub fn whole_from<N>(least: N) -> impl Fn(&str) -> Result<N, String> + Clone
where
    N: TryFrom<u64> + PartialOrd + Copy + Display,
{
    move |word| {
        let number = digits(word);
        let is_large = number.is_none() && is_number(word);
        let large = if is_large { "it is too large: " } else { "" };
        let number = number.filter(|n| *n >= least);
        number.ok_or_else(|| format!("{large}it must be a whole number, {least} or more"))
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

fn digits<N: TryFrom<u64>>(word: &str) -> Option<N> {
    let number: u64 = word.parse().ok().filter(|_| is_number(word))?;
    N::try_from(number).ok()
}

/// A number of milliseconds, with or without a fraction.
///
/// # Errors
///
/// If it is none.
pub fn ms(word: &str) -> Result<f64, String> {
    let number = word
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| "it must be a number of milliseconds, for example 2.5".to_owned())
}

/// `command` with options whose numbers may have a minus: their readers say what is accepted.
/// Without this a negative number is an unknown option.
pub fn with_minus(command: Command) -> Command {
    let sign = |option: Arg| {
        let names = option.get_value_names().unwrap_or_default();
        let is_number = names.iter().any(|name| {
            let names = ["N", "N,N…", "SECONDS", "BYTES", "MIB", "NS", "MS", "TIME"];
            names.contains(&name.as_str())
        });
        match option.get_long().is_some() && is_number {
            true => option.allow_hyphen_values(true),
            false => option,
        }
    };
    command.mut_args(sign).mut_subcommands(with_minus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_answered_by_the_range() {
        let small = whole(1_u32, 256);
        assert_eq!((small("1"), small("256")), (Ok(1), Ok(256)));
        let words = [
            "",
            "0",
            "257",
            "-1",
            "+1",
            "x",
            "1.5",
            "99999999999999999999",
        ];
        for word in words {
            let answer = "it must be a whole number from 1 to 256";
            assert_eq!(small(word), Err(answer.to_owned()), "{word}");
        }
        assert_eq!(whole_from(0)("18446744073709551615"), Ok(u64::MAX));
        let answer = "it must be a whole number, 1 or more".to_owned();
        assert_eq!(whole_from(1_u32)("0"), Err(answer.clone()));
        assert_eq!(whole_from(1_u32)("-1"), Err(answer.clone()));
        let answer = format!("it is too large: {answer}");
        assert_eq!(whole_from(1_u32)("4294967296"), Err(answer));
        assert_eq!(ms("2.5"), Ok(2.5));
        assert!(ms("-1").is_err() && ms("inf").is_err() && ms("x").is_err());
    }
}
