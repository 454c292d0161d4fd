//! The value of `--guard`: how many objects a second are guarded, and what follows a report. `run`
//! asks.

use crate::failure::Failure;

/// Objects a second without a number: twenty cost about a thousandth of a CPU.
const RATE: u32 = 20;
/// Objects a second, at most: the bound of the tunable `guard`.
const RATE_MAX: u32 = 10_000;

/// The settings that a value of `--guard` stands for. `hardened`: whether `--hardened` is given.
///
/// # Errors
///
/// If the value is neither a number, `recover`, nor both; or with `--hardened`, whose objects all
/// have guards of another kind.
pub fn settings(text: &str, hardened: bool) -> Result<Vec<String>, Failure> {
    if hardened {
        return Err(Failure::usage(
            "--guard and --hardened exclude each other",
            "--hardened checks every object; --guard a few, at hardly any cost",
        ));
    }
    let (number, recover) = match text.split_once(',') {
        Some((number, "recover")) => (number, true),
        None if text == "recover" => ("", true),
        None => (text, false),
        Some(_) => return Err(bad(text)),
    };
    let rate = match number {
        "" if text.is_empty() || text == "recover" => RATE,
        number => number.parse().map_err(|_| bad(text))?,
    };
    if !(1..=RATE_MAX).contains(&rate) {
        return Err(bad(text));
    }
    let mut settings = vec![format!("guard={rate}")];
    if recover {
        settings.push("guard_recover=1".to_owned());
    }
    Ok(settings)
}

fn bad(text: &str) -> Failure {
    Failure::usage(
        format!("--guard takes a number of objects a second, 'recover', or both, not '{text}'"),
        format!(
            "for example --guard, --guard=100, --guard=recover, --guard=100,recover; 1 to {RATE_MAX}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_understood() {
        let of = |text| settings(text, false).unwrap();
        assert_eq!(of(""), ["guard=20"]);
        assert_eq!(of("1"), ["guard=1"]);
        assert_eq!(of("10000"), ["guard=10000"]);
        assert_eq!(of("recover"), ["guard=20", "guard_recover=1"]);
        assert_eq!(of("100,recover"), ["guard=100", "guard_recover=1"]);
    }

    #[test]
    fn a_bad_form_is_named_with_the_accepted_ones() {
        let bad = [
            "0",
            "10001",
            "-1",
            "x",
            "20/s",
            ",recover",
            "5,",
            "5,recovery",
            "recover,5",
            " 5",
        ];
        for text in bad {
            let failure = settings(text, false).unwrap_err();
            assert!(
                failure.message.ends_with(&format!("not '{text}'")),
                "{}",
                failure.message
            );
            assert!(
                failure.hint.contains("--guard=100,recover; 1 to 10000"),
                "{}",
                failure.hint
            );
            assert_eq!(failure.code, crate::failure::USAGE);
        }
        assert!(
            settings("", true)
                .unwrap_err()
                .message
                .contains("--hardened")
        );
    }

    #[test]
    fn the_largest_number_is_the_tunable_s() {
        let mut tunables = uslub_core::tunables::Tunables::DEFAULT;
        assert!(tunables.set(&format!("guard={RATE_MAX}")).is_ok());
        assert!(tunables.set(&format!("guard={}", RATE_MAX + 1)).is_err());
    }
}
